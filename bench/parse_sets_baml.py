"""Extracts pairs from BAML's `test_deserializer!(name, file, text, type, json)`; see
`parse_sets.py`.
"""

from __future__ import annotations

import ast
import json
import re
from typing import Any

from parse_pairs import Extract
from parse_tokens import arguments, concatenated, tokens_of

Schema = dict[str, Any]
LEFT_OUT = {
    "test_failing_deserializer": "expects an error",
    "test_partial_deserializer": "option changes what is read",
    "test_deserializer_with_expected_score": "expects no value",
}
BASIC: dict[str, Schema] = {
    "string": {"type": "string"},
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "null": {"type": "null"},
}
CONSTANTS: dict[str, Any] = {"true": True, "false": False}
UNCHANGED = ("into", "to_string", "clone", "new")


def constants(source: str) -> dict[str, str]:
    return {m[1]: next(tokens_of(m[2], '"'))[1:] for m in re.finditer(_CONSTANT, source, re.S)}


_CONSTANT = r'const (\w+): &(?:\'static )?str =\s*(r(#*)".*?"\3|"(?:\\.|[^"\\])*");'


def baml(source: str, extract: Extract, shared: dict[str, str]) -> None:
    tokens, known = list(tokens_of(source, '"')), shared | constants(source)
    for index, name in enumerate(tokens[:-2]):
        if tokens[index + 1 : index + 3] != ["!", "("]:
            continue
        if name in LEFT_OUT:
            extract.calls[LEFT_OUT[name]] += 1
        elif name == "test_deserializer":
            _, declarations, text, kind, expected = arguments(tokens, index + 2)[0]
            try:
                schema = _schema(kind, concatenated(declarations, known))
                extract.add(_text(text, known), schema, (), _json(expected), partial=True)
                extract.calls["extracted"] += 1
            except Unsuitable:
                extract.calls["type that JSON Schema cannot say"] += 1
            except (ValueError, LookupError, SyntaxError):
                extract.calls["not extracted"] += 1


def _text(tokens: list[str], known: dict[str, str]) -> str:
    trimmed = tokens[-4:] == [".", "trim", "(", ")"]
    text = concatenated(tokens[:-4] if trimmed else tokens, known)
    if text is None:
        raise ValueError
    return text.strip() if trimmed else text


class Unsuitable(Exception):
    pass


def _json(tokens: list[str]) -> Any:
    if tokens[:3] == ["json", "!", "("]:
        tokens = tokens[3:-1]
    kept = [
        token
        for token, after in zip(tokens, [*tokens[1:], ""], strict=True)
        if token != "," or after not in ("]", "}")
    ]
    return json.loads(
        "".join(json.dumps(t[1:]) if t[0] == '"' else t + "0" * t.endswith(".") for t in kept)
    )


def _schema(kind: list[str], declarations: str | None) -> Schema:
    """The JSON Schema of a Rust expression such as `FieldType::list(FieldType::class("A"))`."""
    texts = [token[1:] for token in kind if token[0] == '"']
    numbers = iter(range(len(texts)))
    code = "".join(f"_{next(numbers)}" if token[0] == '"' else token for token in kind)
    code = code.replace("::", ".").replace("vec!", "").replace(".class(", ".Class(")
    expression = ast.parse(code, mode="eval").body
    schema = _rust_type(expression, {f"_{n}": text for n, text in enumerate(texts)})
    if declarations is None:
        raise ValueError
    names = set(re.findall(r"#/\$defs/(\w+)", json.dumps(schema)))
    definitions = declared(declarations) if names else {}
    if names - definitions.keys():
        raise ValueError
    return schema | ({"$defs": definitions} if definitions else {})


def _rust_type(node: ast.expr, texts: dict[str, str]) -> Any:
    match node:
        case ast.Name(id=name):
            return texts[name] if name in texts else CONSTANTS[name]
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_rust_type(operand, texts)
        case ast.List(elts=items):
            return [_rust_type(item, texts) for item in items]
        case ast.Attribute(attr=name):
            return BASIC[name.lower()]
        case ast.Call(func=ast.Attribute(value=owner, attr=name), args=[]) if (
            name.lower() not in BASIC
        ):
            return _made(name, [_rust_type(owner, texts)])
        case ast.Call(func=ast.Attribute(attr=name), args=items):
            return _made(name, [_rust_type(item, texts) for item in items])
        case _:
            raise ValueError


def _made(name: str, items: list[Any]) -> Any:
    match name.lower().removeprefix("as_"), items:
        case "class" | "enum", [str(declared_name)]:
            return {"$ref": f"#/$defs/{declared_name}"}
        case "list", [item]:
            return {"type": "array", "items": item}
        case "optional", [item]:
            return {"anyOf": [item, BASIC["null"]]}
        case "union", [list() as options]:
            return {"anyOf": options}
        case "map", [_, value]:
            return {"type": "object", "additionalProperties": value}
        case "literal", [value]:
            return {"const": value}
        case basic, [] if basic in BASIC:
            return BASIC[basic]
        case other, [item] if other in UNCHANGED or other in BASIC or other == "primitive":
            return item
        case _:
            raise ValueError


def declared(source: str) -> dict[str, Schema]:
    """The classes and enums of BAML source as JSON Schemas. Raises Unsuitable or ValueError."""
    source = re.sub(r"//[^\n]*", "", source)
    source = re.sub(
        r'@description\((?:"(?:\\.|[^"\\])*"|#".*?"#)\)', "@described", source, flags=re.S
    )
    definitions: dict[str, Schema] = {}
    for kind, name, body in re.findall(r"\b(class|enum)\s+(\w+)\s*\{([^{}]*)\}", source):
        members = body.replace("@described", "") if kind == "class" else body
        if "@" in members:
            raise Unsuitable
        definitions[name] = {"enum": members.split()} if kind == "enum" else _class(members)
    if "@" in source.replace("@described", ""):
        raise Unsuitable
    if set(re.findall(r"#/\$defs/(\w+)", json.dumps(definitions))) - definitions.keys():
        raise ValueError
    return definitions


def _class(body: str) -> Schema:
    members: dict[str, Schema] = {}
    for line in re.sub(r"\s*\n\s*\|", " |", body).splitlines():
        name, _, kind = line.strip().partition(" ")
        if name:
            tokens = re.findall(r'"[^"]*"|\w+|\[\]|[^\s\w]', kind)
            members[name] = _union(tokens)
            if tokens:
                raise ValueError
    required = [
        name for name, schema in members.items() if BASIC["null"] not in schema.get("anyOf", [])
    ]
    return {"type": "object", "properties": members, "required": required}


def _union(tokens: list[str]) -> Schema:
    options = [_suffixed(tokens)]
    while tokens[:1] == ["|"]:
        tokens.pop(0)
        options.append(_suffixed(tokens))
    return options[0] if len(options) == 1 else {"anyOf": options}


def _suffixed(tokens: list[str]) -> Schema:
    schema = _atom(tokens)
    while tokens[:1] in (["[]"], ["?"]):
        schema = _made("list" if tokens.pop(0) == "[]" else "optional", [schema])
    return schema


def _atom(tokens: list[str]) -> Schema:
    token = tokens.pop(0)
    if token in ("(", "map"):
        if token == "map":
            tokens.pop(0)
        parts = [_union(tokens)]
        while tokens.pop(0) == ",":
            parts.append(_union(tokens))
        return parts[0] if token == "(" else _made("map", parts)
    if token[0] == '"' or token.isdigit() or token in CONSTANTS:
        return {"const": json.loads(token)}
    return BASIC.get(token) or _made("class", [token])

"""Extracts pairs from Python tests by interpreting them as far as their values are literals; see
`parse_sets.py`.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from parse_pairs import Extract, expected_of

OPTIONS = {"return_objects", "skip_json_loads", "ensure_ascii", "logging", "schema"}
TEXT_PARSERS = {
    "repair_json",
    "extract_json_from_codeblock",
    "extract_json_from_stream",
    "strip_markdown_fences",
}
VALUE_PARSERS = {"loads", "parse_json"}
PART_PARSERS = {"fix", "fix_fast"}
"""They return the JSON text in two parts."""
PARSERS = TEXT_PARSERS | VALUE_PARSERS | PART_PARSERS


@dataclass(frozen=True)
class Read:
    """What a call of a parser returns, in the interpreted tests: `path` leads to the item that is
    meant.
    """

    call: ast.Call
    text: str
    schema: Any
    loaded: bool
    path: tuple[Any, ...] = ()


class NotLiteral(Exception):
    pass


class PythonTests:
    """Interprets one Python test file and adds its pairs to an extract."""

    def __init__(self, source: str, extract: Extract) -> None:
        self.extract, self.outcome, tree = extract, dict[int, str](), ast.parse(source)
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        for function in self.functions.values():
            if function.name.startswith("test"):
                for values in self.rows(function):
                    self.run(function.body, values, 0)
        for call in filter(is_parser, ast.walk(tree)):
            extract.calls[self.outcome.get(id(call), "not extracted")] += 1

    def rows(self, function: ast.FunctionDef) -> list[dict[str, Any]]:
        """The arguments of each run of a test, from its `parametrize`."""
        for decorator in function.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func).endswith(
                "parametrize"
            ):
                try:
                    names, table = (self.value(argument, {}) for argument in decorator.args[:2])
                except (NotLiteral, ValueError):
                    return []
                names = (
                    [name.strip() for name in names.split(",")] if isinstance(names, str) else names
                )
                return [
                    dict(zip(names, row if len(names) > 1 else [row], strict=True)) for row in table
                ]
        return [{}]

    def run(self, body: Sequence[ast.stmt], names: dict[str, Any], depth: int) -> None:
        for statement in body:
            try:
                self.step(statement, names, depth)
            except (NotLiteral, TypeError, ValueError, LookupError, AttributeError):
                if isinstance(statement, ast.Assign):
                    for target in ast.walk(statement):
                        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store):
                            names.pop(target.id, None)

    def step(self, statement: ast.stmt, names: dict[str, Any], depth: int) -> None:
        match statement:
            case ast.Assign(targets=[target], value=value):
                bind(target, self.value(value, names), names)
            case ast.Assert(test=ast.Compare(left=left, comparators=others, ops=ops)):
                if all(isinstance(op, (ast.Eq, ast.Is)) for op in ops):
                    *reads, expected = (self.value(side, names) for side in (left, *others))
                    for read in reads:
                        self.compare(read, expected)
            case ast.For(target=target, iter=rows, body=body):
                for row in self.value(rows, names):
                    bind(target, row, names)
                    self.run(body, names, depth)
            case ast.With(items=items, body=body):
                if any("raises" in ast.unparse(item) for item in items):
                    calls = (call for inner in body for call in ast.walk(inner) if is_parser(call))
                    self.outcome.update((id(call), "expects an error") for call in calls)
                else:
                    self.run(body, names, depth)
            case ast.Try(body=body):
                self.run(body, names, depth)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name)) as call) if (
                name in self.functions and depth < 3
            ):
                self.run(self.functions[name].body, self.arguments(call, names), depth + 1)
            case _:
                pass

    def arguments(self, call: ast.Call, names: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(call.func, ast.Name)
        parameters = [argument.arg for argument in self.functions[call.func.id].args.args]
        found = dict(
            zip(parameters, (self.value(argument, names) for argument in call.args), strict=False)
        )
        if any(word.arg not in parameters for word in call.keywords):
            raise NotLiteral
        return found | {str(word.arg): self.value(word.value, names) for word in call.keywords}

    def compare(self, read: Any, expected: Any) -> None:
        if not isinstance(read, Read):
            return
        name = function_name(read.call)
        if name in PART_PARSERS:
            expected = "".join(expected)
        try:
            if expected == "" or not (read.loaded or read.path):
                expected = expected_of(expected)
            json.dumps([expected, read.schema])
        except (TypeError, ValueError):
            self.outcome[id(read.call)] = "expected value is not JSON"
            return
        self.outcome[id(read.call)] = "extracted"
        self.extract.add(read.text, read.schema, read.path, expected)

    def value(self, node: ast.AST, names: dict[str, Any]) -> Any:
        """The value of an expression of literals and known names. Raises NotLiteral."""
        match node:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name) if name in names:
                return names[name]
            case ast.List(elts=items):
                return [self.value(item, names) for item in items]
            case ast.Tuple(elts=items):
                return tuple(self.value(item, names) for item in items)
            case ast.Dict(keys=keys, values=values) if None not in keys:
                return {
                    self.value(k, names): self.value(v, names)
                    for k, v in zip(keys, values, strict=True)
                    if k
                }
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self.value(left, names) + self.value(right, names)
            case ast.BinOp(left=left, op=ast.Mult(), right=right):
                return self.value(left, names) * self.value(right, names)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -self.value(operand, names)
            case ast.Subscript(value=owner, slice=key):
                found, index = self.value(owner, names), self.value(key, names)
                return (
                    replace(found, path=(*found.path, index))
                    if isinstance(found, Read)
                    else found[index]
                )
            case ast.Call():
                return self.called(node, names)
            case _:
                raise NotLiteral

    def called(self, call: ast.Call, names: dict[str, Any]) -> Any:
        name, function = ast.unparse(call.func), self.functions.get(ast.unparse(call.func))
        if name == "json.loads":
            found = self.value(call.args[0], names)
            return replace(found, loaded=True) if isinstance(found, Read) else json.loads(found)
        if is_parser(call):
            return self.parser_call(call, names)
        if name in ("float", "list", "snapshot", "cast") or (
            isinstance(call.func, ast.Attribute) and call.func.attr == "join"
        ):
            found = self.value(call.args[-1], names)
            return float(found) if name == "float" else found
        if (
            function is not None
            and isinstance(function.body[-1], ast.Return)
            and function.args.kwarg is None
        ):
            return self.value(function.body[-1].value or call, self.arguments(call, names))
        raise NotLiteral

    def parser_call(self, call: ast.Call, names: dict[str, Any]) -> Any:
        words = {str(word.arg): self.value(word.value, names) for word in call.keywords}
        if words.get("stream_stable") is False:
            del words["stream_stable"]
        if len(call.args) != 1 or words.keys() - OPTIONS:
            self.outcome[id(call)] = "option changes what is read"
            raise NotLiteral
        text = self.value(call.args[0], names)
        text = text if isinstance(text, str) else "".join(text)
        loaded = function_name(call) in VALUE_PARSERS or bool(
            words.get("return_objects") or words.get("logging")
        )
        read = Read(call, text, words.get("schema"), loaded)
        return (read, None) if words.get("logging") else read


def is_parser(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and function_name(node) in PARSERS


def function_name(call: ast.Call) -> str:
    """`loads` is that of json_repair: `json.loads` is another."""
    name = ast.unparse(call.func)
    return name if name != "json.loads" else ""


def bind(target: ast.expr, value: Any, names: dict[str, Any]) -> None:
    if isinstance(target, ast.Tuple):
        for part, item in zip(target.elts, value, strict=True):
            bind(part, item, names)
    elif isinstance(target, ast.Name):
        names[target.id] = value

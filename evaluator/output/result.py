"""The result of reading an output: the value, warnings and an error; and the kinds of repair.

The kinds of repair that reading may make to a text, and the message of each.
"""

from __future__ import annotations

from typing import Any, Literal

from evaluator.lazy_dataclass import frozen

MESSAGES = {
    "no_schema": "a schema has no effect where the type is text",
    "reasoning": "text inside reasoning tags was left out",
    "reasoning_open": "a reasoning tag was never closed: everything after it was left out as "
    "reasoning",
    "reasoning_close": "a closing reasoning tag had no opening one: everything before it was left "
    "out as reasoning",
    "skipped": "too many places look like JSON: the middle of the text was not read",
    "bom": "a byte order mark was left out",
    "prose": "text around the JSON was left out",
    "backticks": "backticks around the JSON were left out",
    "fence": "a code fence around the value was left out",
    "single": "single quotes were read as string quotes",
    "typographic": "typographic quotes were read as string quotes",
    "inner_quotes": "unescaped quotes inside a string were kept as part of it",
    "missing_quote": "a missing closing quote was added",
    "opening_quote": "a missing opening quote was added",
    "mixed_quotes": "a quote of another kind was read as the end of a string",
    "doubled_quotes": "doubled or tripled quotes were read as one",
    "text_after": "text between a string and the next comma or bracket was left out",
    "prefix": "prefixes of strings were left out (b'…', r'…')",
    "joined": "strings joined with +, or written one after the other, were read as one",
    "escape": "invalid escapes were kept with their backslash",
    "literal_escape": "the backslashes of LaTeX commands and paths were kept (\\frac, C:\\temp)",
    "control": "unescaped line breaks or control characters in a string were kept",
    "comment": "comments were left out",
    "trailing_comma": "a trailing comma was left out",
    "extra_comma": "extra commas were left out",
    "missing_comma": "a missing comma was added",
    "literal": "Python or JavaScript literals were read as their JSON forms (True, False, None, "
    "undefined)",
    "nan": "NaN or Infinity is not JSON and was read as null",
    "number": "numbers in other notations were read as JSON numbers (+1, .5, 1_000, full-width "
    "digits)",
    "unit": "the unit after a number was left out, because the schema asks for a number",
    "multiplier": "a number was multiplied by the word after it (2.5 million)",
    "huge_number": "a number that is too large was kept as text",
    "unquoted_key": "unquoted keys were read as strings",
    "unquoted_text": "unquoted text was read as a string",
    "duplicate": "a key occurs more than once in an object: the last value was kept",
    "no_value": "a key without a value was left out",
    "ellipsis": "an ellipsis (...) was left out",
    "missing_colon": "a missing colon was added",
    "blanks": "unusual blanks were read as spaces",
    "parentheses": "parentheses around a value were left out",
    "list_marks": "the marks of list items were left out",
    "tuple": "tuples and sets were read as arrays",
    "separator": "other separators were read as commas and colons",
    "unclosed": "missing closing brackets were added",
    "mismatched": "mismatched closing brackets were corrected",
    "surplus": "surplus closing brackets were left out",
    "surplus_opening": "surplus opening brackets were left out",
    "mismatched_opening": "opening brackets of the wrong kind were corrected",
    "opening": "a missing opening bracket was added",
    "quoted_lines": "the marks of quoted lines (>) were left out",
    "entities": "HTML entities were read as the characters that they stand for",
    "escaped": "the whole text was escaped once too often",
    "escaped_blanks": "escaped line breaks between values were read as line breaks",
    "wide": "full-width brackets were read as brackets",
    "lines": "several JSON values, one after the other, were read as one array",
    "inner": "a value inside another one was read, because it alone fits the schema",
    "list": "the items of a list were read as an array, without the text around them",
    "labels": "labelled lines were read as JSON, without the text around them",
    "table": "the rows of a table were read as objects, without the text around it",
    "elements": "XML elements were read as JSON, without the text around them",
    "constructor": "constructor calls, such as Name(key=1), were read as objects",
    "cut_block": "a last block that is cut off was left out",
    "cut": "the text is cut off at the end: the complete parts and the beginning of a cut string "
    "were kept",
    "cut_item": "the text is cut off at the end: a last item that is incomplete was left out",
    "cut_value": "the text is cut off at the end: a last value that may be incomplete was left out",
}


ErrorKind = Literal["no_json", "type_mismatch", "schema_violation", "bad_schema", "xml", "repaired"]


@frozen
class OutputError:
    """The reason why a text has no value.

    `path` is a JSON path such as `$.items[2].price`; None if the error has no place. `expected` and
    `actual` are type names, or the rule that was broken and the value.
    """

    kind: ErrorKind
    message: str
    path: str | None = None
    expected: str | None = None
    actual: str | None = None

    def __str__(self) -> str:
        if self.path:
            return f"{self.path}: {self.message}"
        return self.message


@frozen
class NotChecked(OutputError):
    """The check took too long, so it is not known whether the value matches, or where it does not.

    For a pattern `path` is that of the text or object where it is known (not under `not`, `if` or
    `contains`), else `$`.
    """


@frozen
class ParsedOutput:
    """A value that was read from a text; `text` is the original text, also with an error.

    With an error `value` is None, so that a value that does not match is never used by accident. A
    JSON `null` is None too, without an error. `warnings` has one entry for each kind of change.
    """

    value: Any
    warnings: tuple[str, ...] = ()
    error: OutputError | None = None
    text: str = ""


def json_path(parts: tuple[str | int, ...] | list[str | int]) -> str:
    """`$.items[2].price` for `("items", 2, "price")`; keys that are not identifiers are quoted in
    brackets.
    """
    path = "$"
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier():
            path += f".{part}"
        else:
            path += f"[{part!r}]"
    return path

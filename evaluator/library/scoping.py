"""Variables in every scope: each name that a text reads must be bound where the text is resolved.

A task's inputs are bound for its own texts and for everything inside it. The names that an operator
binds for its child nodes, and their shapes, are what its class declares. A function's body sees its
parameters and nothing else. An input's `from`, its default and its nested task see what is around
the task, and those inputs of the task whose values come from the caller.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from evaluator.errors import Diagnostic, ExpressionError
from evaluator.errors.messages import correction, did_you_mean, listed, with_article
from evaluator.language.analysis import read_all
from evaluator.language.inputs import single_expression, unnamed_inputs
from evaluator.language.syntax import GLOBALS, Analysis, Reference, Use, has_markup
from evaluator.lazy_dataclass import dataclass
from evaluator.library.calls import check_call, check_call_in_text
from evaluator.library.shapes import ResultShapes, find_part, follow, mismatch, shown_path
from evaluator.library.structure import check_structure
from evaluator.nodes import (
    Argument,
    Call,
    Expression,
    Function,
    Input,
    Iteration,
    Node,
    Span,
    Task,
    Text,
    TopLevel,
)
from evaluator.nodes.declare import FIELDS, OPERATORS, Field, values
from evaluator.nodes.values import ANY, Kind, Shape, of_type, type_text, value_shape
from evaluator.patterns import Pattern


@dataclass(slots=True)
class Binding:
    """A name in scope. `used` is set when a text reads it. `origin` declares the name: an input, a
    function with this parameter, or the node that binds it.
    """

    shape: Shape
    used: bool = False
    origin: Input | TopLevel | Node | None = None


Bindings = ChainMap[str, Binding]


class ScopeObserver:
    """Is told what a walk sees. This base class ignores it."""

    def text(self, value: Text | Expression, scope: Bindings) -> None:
        """A text or an expression, and the names that it may read."""

    def reference(self, reference: Reference, text: Text, binding: Binding) -> None:
        """A name that a text reads."""

    def inherited(self, declared: Input, binding: Binding) -> None:
        """An input whose value is that of the name that `binding` is around its task."""


class TooManyFindings(Exception):
    """A walk has found as much as it may; it ends."""


_PATH = Pattern(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*|\[\s*(?:\d+|'[^']*'|\"[^\"]*\")\s*\])*\Z")


class _Known(ResultShapes):
    """The shapes that the declarations of an operator may query: those of results and of variables
    in `scope`.
    """

    scope: Mapping[str, Binding] = {}

    def variable(self, name: str) -> Shape:
        if name in self.scope:
            return self.scope[name].shape
        return ANY


class ScopeWalk:
    """One walk over one template. `diagnostics` is filled as it goes; `called` has the templates it
    names.
    """

    MAX_FINDINGS: ClassVar[int] = 100
    """After this many findings the walk ends with an error that says so."""

    def __init__(
        self,
        templates: Mapping[str, TopLevel],
        known_tools: frozenset[str] | None = None,
        broken: Collection[str] = (),
        observer: ScopeObserver | None = None,
    ) -> None:
        self._templates = templates
        self._broken = broken
        self._observer = observer or ScopeObserver()
        self._known_tools = known_tools
        self._in_function: str | None = None
        self._known = _Known(templates)
        self.diagnostics: list[Diagnostic] = []
        self.called: dict[str, Span] = {}
        self._unread_words: set[str] = set()

    def top(self, node: TopLevel) -> None:
        """Checks a registered template, as if it is evaluated by name with its declared inputs."""
        try:
            if isinstance(node, Function):
                self._in_function = node.name
                names = {
                    param.name: Binding(of_type(param.type) or ANY, origin=node)
                    for param in node.params
                }
                self._node(node, ChainMap(names))
            else:
                self._task(node, ChainMap(), top=True)
        except TooManyFindings:
            last = self.diagnostics[-1].span
            message = (
                f"more than {self.MAX_FINDINGS} errors and warnings in this template; it is "
                "not checked further"
            )
            self.diagnostics.append(
                Diagnostic("error", "too-many-errors", message=message, span=last)
            )

    def _node(self, node: TopLevel | Node, scope: Bindings) -> None:
        if isinstance(node, Call):
            shapes = [self._argument(argument, scope) for argument in node.args]
            self.called.setdefault(node.template, node.span)
            self._add(check_call(node, shapes, templates=self._templates, broken=self._broken))
        elif isinstance(node, Task):
            self._task(node, scope)
        else:
            self._add(check_structure(node, self._known_tools))
            self._fields(node, node, scope=scope)

    def _task(self, node: Task, outer: Bindings, top: bool = False) -> None:
        self._add(check_structure(node, self._known_tools))
        bindings = {
            declared.name: Binding(of_type(declared.type) or ANY, origin=declared)
            for declared in node.inputs
            if declared.is_given
        }
        scope = outer.new_child()
        base = self._templates.get(node.ref or "")
        inherited = base.inputs if isinstance(base, Task) else ()
        for declared in node.inputs:
            # The source of an input does not see the input.
            binding = bindings.pop(declared.name, None)
            if any(declared is each for each in inherited):
                place = node.span
            else:
                place = declared.span
            scope[declared.name] = self._input(
                declared, outer, others=bindings, own=binding, top=top, place=place
            )
            if binding is not None:
                bindings[declared.name] = binding
        if isinstance(node, Iteration):
            self._use(node.iterated, scope)
        if node.runs_process:  # it reads all its inputs on stdin
            self._use((declared.name for declared in node.inputs), scope)
        self._fields(node, node, scope=scope)
        if node.ref is None:
            self._unused(node, scope)

    def _use(self, names: Iterable[str], scope: Bindings) -> None:
        for name in names:
            if name in scope:
                scope[name].used = True

    def _fields(self, owner: Any, node: Any, scope: Bindings) -> None:
        """Checks the texts and the children of `node` that `owner` holds: the node itself, or a
        part of it.
        """
        empty: dict[str, str] = {}
        for field, position, value in values(owner, "text", "setting", "node", "part"):
            if field.role == "part":
                if field.of is not Input:
                    self._fields(value, node, scope=scope)
                continue
            inner = scope
            if field.binds is not None:
                self._known.scope = scope
                shapes = field.bound(node, position, self._known)
                inner = scope.new_child(
                    {name: Binding(shape, origin=node) for name, shape in shapes.items()}
                )
            if field.role == "node":
                self._node(value, inner)
            elif isinstance(value, Expression):
                self._expression(value, inner)
            elif isinstance(value, Text):
                self._text(value, inner)
            if not field.may_call and field.role != "node":
                self._refuse_calls(value)
            self._unread(field, value, scope=inner)
            empty |= {
                name: inner[name].shape.empty
                for name in field.binds or ()
                if name in inner and inner[name].used
            }
        for name, why in empty.items():
            if why:
                self._warn(
                    f"empty-{name.replace('_', '-')}",
                    f"`{name}` is always empty here: {why}",
                    span=node.span,
                )

    def _refuse_calls(self, value: object) -> None:
        """A finding for each function template that is called where a text cannot call one."""
        if not isinstance(value, Text | Expression):
            return
        reading = read_all(value)
        if reading.analysis is None:
            return
        for call in reading.analysis.calls:
            if call.name in self._templates:
                self._error(
                    "call-not-allowed",
                    f"`{call.name}` cannot be called here",
                    span=value.source.locate(call.offset),
                    hint=f'declare an input from="{call.name}(…)", and write its name here',
                )

    def _unread(self, field: Field, child: Any, scope: Bindings) -> None:
        """A finding where a child reads none of the names that it has to read to have a purpose."""
        for names, message in field.expects:
            if not any(scope[name].used for name in names if name in scope):
                self._warn(
                    "setting-without-effect",
                    message,
                    span=child.span,
                    hint=f"read {listed(names)} there",
                )

    def _unused(self, node: Task, inner: Bindings) -> None:
        appended = set[str]()
        if node.asks_model:
            appended.update(one.name for one in unnamed_inputs(node))
        for declared in node.inputs:
            if declared.name in self._unread_words:
                continue
            if declared.name in appended:
                message = f"no text names the input `{declared.name}`: it is appended to the prompt"
                hint = f"write {{{{ {declared.name} }}}} where it belongs, if the place matters"
                self.diagnostics.append(
                    Diagnostic(
                        "note", "appended-input", message=message, span=declared.span, hint=hint
                    )
                )
            elif not inner[declared.name].used:
                message = f"input `{declared.name}` is never used"
                hint = f"write {{{{ {declared.name} }}}} where it belongs, or remove it"
                self._warn("unused-input", message, span=declared.span, hint=hint)

    def _input(
        self,
        declared: Input,
        outer: Bindings,
        others: dict[str, Binding],
        own: Binding | None,
        top: bool,
        place: Span,
    ) -> Binding:
        """The input's binding. The source of its value is checked in the scope around the task.

        `others` are the other inputs that the caller gives. `place` is that of a finding about what
        the scope gives the input.
        """
        around = outer
        if top:
            around = ChainMap(*outer.maps, others)
        shape = of_type(declared.type) or ANY
        if declared.source is not None:
            found = self._expression(declared.source, around)
            self._fits(found, shape, declared=declared, span=declared.source.span)
            return Binding(found if shape.kind == "any" else shape, origin=declared)
        if declared.task is not None:
            self._node(declared.task, around)
            found = value_shape(self._known.result(declared.task))
            self._fits(found, shape, declared=declared, span=declared.span)
            return Binding(found if shape.kind == "any" else shape, origin=declared)
        if declared.default is not None:
            self._text(declared.default, around)
        if top:
            elsewhere = None
        else:
            elsewhere = outer.get(declared.name)
        if elsewhere is not None:
            elsewhere.used = True
            self._observer.inherited(declared, elsewhere)
            self._fits(elsewhere.shape, shape, declared=declared, span=place)
            return Binding(elsewhere.shape if shape.kind == "any" else shape, origin=declared)
        if not top and declared.required and declared.default is None:
            hint = did_you_mean(
                declared.name, outer, otherwise="add from=…, a default, or a nested task"
            )
            message = (
                f"required input `{declared.name}` gets no value: nothing of that name is "
                "in scope here"
            )
            self._error("missing-input", message, span=place, hint=hint)
        return own or Binding(shape, origin=declared)

    def _fits(self, have: Shape, want: Shape, declared: Input, span: Span) -> None:
        if mismatch(have, want):
            value = f"a value of type {type_text(have)}{f' ({have.what})' if have.what else ''}"
            message = f"input `{declared.name}` is declared {declared.type} and gets {value}"
            self._error("type-mismatch", message, span=span)

    # Calls

    def _argument(self, argument: Argument, scope: Bindings) -> Shape | str:
        """The shape of the value that is passed; the text itself where the argument is a
        literal.
        """
        bare = argument.value.value.strip()
        root = re.split(r"[.\[]", bare, maxsplit=1)[0]
        if root.isidentifier() and root in scope:
            return self._expression(Expression(argument.value), scope)
        if has_markup(argument.value.value):
            inner = single_expression(argument.value)
            if inner is not None:
                return self._expression(Expression(inner), scope)
            self._text(argument.value, scope)
            return ANY
        if bare.isidentifier() or _PATH.match(bare):
            hint = did_you_mean(root, scope)
            if hint is not None:
                message = f"the argument `{bare}` names no variable, so it is passed as text"
                self._warn("literal-argument", message, span=argument.value.span, hint=hint)
        return argument.value.value

    # Texts

    def _text(self, text: Text, scope: Bindings) -> None:
        found = self._read(text, scope)
        if found is not None:
            self._found(found, text, scope=scope)

    def _read(self, value: Text | Expression, scope: Bindings) -> Analysis | None:
        """What a text refers to, with a finding for each of its errors.

        A name in a part that cannot be read counts as used.
        """
        self._observer.text(value, scope)
        reading = read_all(value)
        self._add(map(_of_expression, reading.errors))
        self._use(reading.words, scope)
        if reading.errors:
            self._unread_words |= reading.words
            if reading.analysis is not None:
                self._unread_words.update(each.name for each in reading.analysis.references)
        return reading.analysis

    def _expression(self, expression: Expression, scope: Bindings) -> Shape:
        """The shape of the expression's value, where it is a name with a path and nothing else."""
        found = self._read(expression, scope)
        if found is None:
            return ANY
        shapes = self._found(found, expression.source, scope=scope)
        plain = (
            len(shapes) == 1 and not found.calls and _PATH.match(expression.source.value.strip())
        )
        if plain:
            return shapes[0]
        return ANY

    def _found(self, found: Analysis, text: Text, scope: Bindings) -> list[Shape]:
        for call in found.calls:
            self.called.setdefault(call.name, text.locate(call.offset))
            in_scope = scope.get(call.name)
            if in_scope is not None and call.name not in self._templates:
                in_scope.used = True
                message = f"`{call.name}` is a variable, not a function"
                self._error("not-a-function", message, span=text.locate(call.offset))
                continue
            self._add(
                check_call_in_text(call, text, templates=self._templates, broken=self._broken)
            )
        return [self._reference(reference, text, scope=scope) for reference in found.references]

    def _reference(self, reference: Reference, text: Text, scope: Bindings) -> Shape:
        binding = scope.get(reference.name)
        if binding is None:
            if not reference.optional:
                self._undefined(reference, text, scope=scope)
            return ANY
        binding.used = True
        self._observer.reference(reference, text, binding)
        followed = follow(binding.shape, reference.path, name=reference.name)
        if isinstance(followed, Shape):
            if reference.use is not None:
                self._used(reference, reference.use, followed.kind, text=text)
            return followed
        if not reference.optional:
            offset = reference.offset
            for part in reference.path[: followed.at + 1]:
                offset = find_part(text, offset, part=part)
            self._error(
                "unknown-field", followed.message, span=text.locate(offset), hint=followed.hint
            )
        return ANY

    def _used(self, reference: Reference, use: Use, kind: Kind, text: Text) -> None:
        """A finding where a text does with a value what the value's type does not allow."""
        if kind in ("any", "null") or kind in use.kinds:
            return
        shown = shown_path(reference.name, reference.path)
        self._error(
            use.code,
            f"`{shown}` is {with_article(kind)}, and {use.problem}",
            span=text.locate(use.offset),
            hint=f"it is for values of type {listed(use.kinds)}",
        )

    def _undefined(self, reference: Reference, text: Text, scope: Bindings) -> None:
        name = reference.name
        span = text.locate(reference.offset)
        target = self._templates.get(name)
        if isinstance(target, Function):
            params = ", ".join(param.name for param in target.params)
            message = f"`{name}` is a function: it has no value until it is called"
            self._error("function-not-called", message, span=span, hint=f"write {name}({params})")
            return
        if name in GLOBALS:
            self._error(
                "function-not-called", f"`{name}` is a function and was not called", span=span
            )
            return
        meant = correction(name, scope)
        if meant is not None:
            scope[meant].used = True  # that it seems unused follows from the misspelt name
        hint = did_you_mean(name, scope) or _where_bound(name)
        if hint is None and self._in_function is not None:
            hint = (
                f"the function `{self._in_function}` sees its parameters and nothing else: "
                f"{listed(scope)}"
            )
        elif hint is None:
            if scope:
                hint = f"in scope here: {listed(scope)}"
            else:
                hint = f'declare it: <input name="{name}"/>'
        self._error("undefined-variable", f"`{name}` is not defined", span=span, hint=hint)

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self._add([Diagnostic("error", code, message=message, span=span, hint=hint)])

    def _warn(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self._add([Diagnostic("warning", code, message=message, span=span, hint=hint)])

    def _add(self, found: Iterable[Diagnostic]) -> None:
        for diagnostic in found:
            if len(self.diagnostics) >= self.MAX_FINDINGS:
                raise TooManyFindings
            self.diagnostics.append(diagnostic)


_QUOTED = Pattern(r"'([^']*)'")


def _of_expression(error: ExpressionError) -> Diagnostic:
    """The finding for an error of a text, with the filter that is clearly meant as its fix."""
    found = error.diagnostic()
    name = _QUOTED.search(found.message)
    if found.code != "unknown-filter" or name is None:
        return found
    from evaluator.language.filters import FILTER_NAMES

    meant = correction(name[1], FILTER_NAMES)
    if meant is None:
        return found
    return replace(found, fix=(name[1], meant))


def _where_bound(name: str) -> str | None:
    """A hint where operators bind the unbound `name`; None if no operator binds it."""
    places: list[str] = []
    for type_name, cls in OPERATORS.items():
        elements = [f"<{field.element}>" for field in FIELDS[cls] if name in (field.binds or ())]
        if elements:
            places.append(f"in {', '.join(elements)} of {with_article(type_name)} task")
    if places:
        return f"`{name}` is bound {' and '.join(places)}"
    return None

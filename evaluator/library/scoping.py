"""Variables in every scope: each name that a text reads must be bound where the text is resolved.

The walk mirrors what the operators bind: inputs for the task's own texts and everything inside it; `steps`
and `previous` for the steps of a sequence; `current_input`, `index` (and `current_result`, `accumulator` for
the reduction) in reduce; the five names of the loop. A function's body sees its parameters and nothing else.
An input's `from`, its default and its nested task see what is around the task, and those of its inputs whose
values come from the caller.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from evaluator.errors import Diagnostic, ExpressionError
from evaluator.library.calls import check_call, check_call_in_text
from evaluator.library.near import did_you_mean, listed
from evaluator.library.results_shape import parsed_shape, step_shape, value_shape
from evaluator.library.shapes import (
    ANY,
    BOOLEAN,
    INTEGER,
    STRING,
    Shape,
    WrongPath,
    find_part,
    follow,
    mismatch,
    of_type,
    record,
)
from evaluator.library.structure import check_structure
from evaluator.library.syntax import GLOBALS, Analysis, Reference, analyse, analyse_expression, has_markup
from evaluator.nodes import (
    Argument,
    Call,
    Cond,
    DirectorEvaluatorLoop,
    Expression,
    Function,
    Input,
    Node,
    Reduce,
    Script,
    Sequential,
    Span,
    Task,
    Text,
    TopLevel,
)


@dataclass(slots=True)
class Binding:
    """A name in scope. `used` is set when a text reads it."""

    shape: Shape
    used: bool = False


Bindings = dict[str, Binding]

# Where a name that operators bind can be read; for the hint of an undefined one.
_BOUND_BY = {
    "steps": "`steps` is bound inside the steps of a sequential task",
    "previous": "`previous` is bound from the second step of a sequential task on",
    "current_input": "`current_input` is bound inside reduce",
    "index": "`index` is bound inside reduce",
    "current_result": "`current_result` is bound in the reduction_task only",
    "accumulator": "`accumulator` is bound in the reduction_task only",
    "director_result": "`director_result` is bound inside a director_evaluator_loop",
    "script_output": "`script_output` is bound inside a director_evaluator_loop",
    "evaluation": "`evaluation` is bound inside a director_evaluator_loop",
    "evaluation_feedback": "`evaluation_feedback` is bound inside a director_evaluator_loop",
    "current_iteration": "`current_iteration` is bound inside a director_evaluator_loop",
}
_PATH = re.compile(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*|\[\s*(?:\d+|'[^']*'|\"[^\"]*\")\s*\])*\Z")


class ScopeWalk:
    """One walk over one template. `diagnostics` is filled as it goes; `called` has the templates it names."""

    def __init__(
        self,
        templates: Mapping[str, TopLevel],
        known_tools: frozenset[str] | None = None,
        broken: Collection[str] = (),
    ) -> None:
        self._templates = templates
        self._broken = broken
        self._known_tools = known_tools
        self._in_function: str | None = None
        self.diagnostics: list[Diagnostic] = []
        self.called: dict[str, Span] = {}

    def top(self, node: TopLevel) -> None:
        """Checks a registered template, as it is when it is asked for by name with its declared inputs."""
        if isinstance(node, Function):
            self.diagnostics += check_structure(node, self._known_tools)
            self._in_function = node.name
            self._node(node.body, {p.name: Binding(of_type(p.type) or ANY) for p in node.params})
        else:
            self._task(node, {}, top=True)

    def _node(self, node: Node, scope: Bindings) -> None:
        if isinstance(node, Call):
            self._call(node, scope)
        elif isinstance(node, Cond):
            self.diagnostics += check_structure(node, self._known_tools)
            for case in node.cases:
                self._expression(case.test, scope)
                self._node(case.body, scope)
            if node.default is not None:
                self._node(node.default, scope)
        else:
            self._task(node, scope)

    # Tasks

    def _task(self, node: Task, outer: Bindings, top: bool = False) -> None:
        self.diagnostics += check_structure(node, self._known_tools)
        given = {i.name: Binding(of_type(i.type) or ANY) for i in node.inputs if i.source is None and i.task is None}
        inner = dict(outer)
        for declared in node.inputs:
            inner[declared.name] = self._input(declared, outer, given, top)
        self._own_texts(node, inner)
        match node:
            case Sequential():
                self._steps(node, inner)
            case Reduce():
                self._reduce(node, inner)
            case DirectorEvaluatorLoop():
                self._loop(node, inner)
            case Script():
                for declared in node.inputs:  # they reach the process on stdin
                    inner[declared.name].used = True
                for argument in node.command:
                    self._text(argument, inner)
                self._setting(node.timeout_s, inner)
            case _:
                pass
        if node.ref is None:
            self._unused(node, inner)

    def _unused(self, node: Task, inner: Bindings) -> None:
        for declared in node.inputs:
            if not inner[declared.name].used:
                message = f"input `{declared.name}` is never used"
                hint = f"write {{{{ {declared.name} }}}} where it belongs, or remove it"
                self._warn("unused-input", message, declared.span, hint)

    def _input(self, declared: Input, outer: Bindings, given: Bindings, top: bool) -> Binding:
        """The input's binding; what its value comes from is checked in the scope around the task."""
        own = given.get(declared.name)
        around = {**{name: b for name, b in given.items() if name != declared.name}, **outer} if top else outer
        shape = of_type(declared.type) or ANY
        if declared.source is not None:
            found = self._expression(declared.source, around)
            self._fits(found, shape, declared, declared.source.span)
            return Binding(found if shape.kind == "any" else shape)
        if declared.task is not None:
            self._node(declared.task, around)
            found = value_shape(parsed_shape(declared.task, self._templates))
            self._fits(found, shape, declared, declared.span)
            return Binding(found if shape.kind == "any" else shape)
        if declared.default is not None:
            self._text(declared.default, outer)
        elsewhere = None if top else outer.get(declared.name)
        if elsewhere is not None:
            elsewhere.used = True
            self._fits(elsewhere.shape, shape, declared, declared.span)
            return Binding(elsewhere.shape if shape.kind == "any" else shape)
        if not top and declared.required and declared.default is None:
            hint = did_you_mean(declared.name, outer, "add from=…, a default, or a nested task")
            message = f"required input `{declared.name}` gets no value: nothing of that name is in scope here"
            self._error("missing-input", message, declared.span, hint)
        return own or Binding(shape)

    def _fits(self, have: Shape, want: Shape, declared: Input, span: Span) -> None:
        if mismatch(have, want):
            value = f"a value of type {have.kind}{f' ({have.what})' if have.what else ''}"
            message = f"input `{declared.name}` is declared {declared.type} and gets {value}"
            self._error("type-mismatch", message, span)

    def _own_texts(self, node: Task, scope: Bindings) -> None:
        for text in (node.description, node.instructions, node.system, node.model, node.criteria):
            if text is not None and has_markup(text.value):
                self._text(text, scope)
        if node.handler is not None:
            said = node.handler
            for setting in (
                said.max_turns,
                said.max_context_fraction,
                said.max_output_tokens,
                said.timeout_s,
                said.max_cost_usd,
                said.script_memory_mb,
            ):
                self._setting(setting, scope)
        self._setting(node.manual_xml, scope)
        self._setting(node.disable_reparsing, scope)
        if node.file_paths is not None:
            for item in node.file_paths.items:
                self._text(item, scope)

    # What the operators bind

    def _steps(self, node: Sequential, scope: Bindings) -> None:
        later = {s.name: f"that step runs later, as step {n}" for n, s in enumerate(node.steps, 1) if s.name}
        known: dict[str | int, Shape] = {}
        for index, step in enumerate(node.steps):
            if step.name is not None:
                later[step.name] = "that is this step itself"
            absent: dict[str | int, str] = {
                **later,
                **dict.fromkeys(range(index, len(node.steps)), "it has not run yet"),
            }
            inner = dict(scope)
            inner["steps"] = Binding(Shape("object", dict(known), False, None, "", absent))
            if index:
                inner["previous"] = Binding(known[index - 1])
            self._node(step, inner)
            label = f"step `{step.name}`" if step.name else f"step {index + 1}"
            result = step_shape(parsed_shape(step, self._templates), label)
            known[index] = result
            if step.name is not None:
                known[step.name] = result
                later.pop(step.name, None)

    def _reduce(self, node: Reduce, scope: Bindings) -> None:
        names = node.over or tuple(declared.name for declared in node.inputs)
        shapes: list[Shape] = []
        for name in names:
            if name in scope:
                scope[name].used = True
                shapes.append(scope[name].shape)
        if node.initial_value is not None:
            self._text(node.initial_value, scope)
        self._setting(node.concurrency, scope)
        item = shapes[0].item if len(shapes) == 1 and shapes[0].kind == "array" else None
        inner = {**scope, "current_input": Binding(item or ANY), "index": Binding(INTEGER)}
        self._node(node.inner_task, inner)
        inner = {
            **inner,
            "current_result": Binding(value_shape(parsed_shape(node.inner_task, self._templates))),
            "accumulator": Binding(ANY),
        }
        self._node(node.reduction_task, inner)

    def _loop(self, node: DirectorEvaluatorLoop, scope: Bindings) -> None:
        self._setting(node.max_iterations, scope)
        evaluation = record("evaluation", True, success=BOOLEAN, feedback=STRING, details=ANY)
        script = record("script_output", stdout=STRING, stderr=STRING, exit_code=INTEGER)
        inner = {
            **scope,
            "current_iteration": Binding(INTEGER),
            "director_result": Binding(ANY),
            "script_output": Binding(script),
            "evaluation": Binding(evaluation),
            "evaluation_feedback": Binding(STRING),
        }
        self._node(node.director, inner)
        inner["director_result"] = Binding(value_shape(parsed_shape(node.director, self._templates)))
        if node.script_execution is not None:
            self._node(node.script_execution, inner)
        self._node(node.evaluator, inner)
        if node.termination_condition is not None:
            self._expression(node.termination_condition, inner)
        if node.script_execution is None and inner["script_output"].used:
            message = "`script_output` is always empty here: the loop has no script_execution"
            self._warn("empty-script-output", message, node.span)

    # Calls

    def _call(self, node: Call, scope: Bindings) -> None:
        shapes = [self._argument(argument, scope) for argument in node.args]
        self.called.setdefault(node.template, node.span)
        self.diagnostics += check_call(node, shapes, self._templates, self._broken)

    def _argument(self, argument: Argument, scope: Bindings) -> Shape | str:
        """The shape of the value that is passed; the text itself where the argument is a literal."""
        bare = argument.value.value.strip()
        root = re.split(r"[.\[]", bare, maxsplit=1)[0]
        if root.isidentifier() and root in scope:
            return self._expression(Expression(argument.value), scope)
        if has_markup(argument.value.value):
            self._text(argument.value, scope)
            return ANY
        if bare.isidentifier() or _PATH.match(bare):
            hint = did_you_mean(root, scope)
            if hint is not None:
                message = f"the argument `{bare}` names no variable, so it is passed as text"
                self._warn("literal-argument", message, argument.value.span, hint)
        return argument.value.value

    # Texts

    def _setting(self, value: object, scope: Bindings) -> None:
        if isinstance(value, Text):
            self._text(value, scope)

    def _text(self, text: Text, scope: Bindings) -> None:
        if not has_markup(text.value):
            return
        try:
            found = analyse(text)
        except ExpressionError as error:
            self.diagnostics.append(error.diagnostic())
            return
        self._found(found, text, scope)

    def _expression(self, expression: Expression, scope: Bindings) -> Shape:
        """The shape of the expression's value, where it is a name with a path and nothing else."""
        try:
            found = analyse_expression(expression)
        except ExpressionError as error:
            self.diagnostics.append(error.diagnostic())
            return ANY
        shapes = self._found(found, expression.source, scope)
        plain = len(shapes) == 1 and not found.calls and _PATH.match(expression.source.value.strip())
        return shapes[0] if plain else ANY

    def _found(self, found: Analysis, text: Text, scope: Bindings) -> list[Shape]:
        for call in found.calls:
            self.called.setdefault(call.name, text.locate(call.offset))
            in_scope = scope.get(call.name)
            if in_scope is not None and call.name not in self._templates:
                in_scope.used = True
                message = f"`{call.name}` is a variable, not a function"
                self._error("not-a-function", message, text.locate(call.offset))
                continue
            self.diagnostics += check_call_in_text(call, text, self._templates, self._broken)
        return [self._reference(reference, text, scope) for reference in found.references]

    def _reference(self, reference: Reference, text: Text, scope: Bindings) -> Shape:
        binding = scope.get(reference.name)
        if binding is None:
            if not reference.optional:
                self._undefined(reference, text, scope)
            return ANY
        binding.used = True
        followed = follow(binding.shape, reference.path, reference.name)
        if isinstance(followed, Shape):
            return followed
        if not reference.optional:
            self._wrong_path(followed, reference, text)
        return ANY

    def _wrong_path(self, wrong: WrongPath, reference: Reference, text: Text) -> None:
        offset = reference.offset
        for part in reference.path[: wrong.at + 1]:
            offset = find_part(text, offset, part)
        self._error("unknown-field", wrong.message, text.locate(offset), wrong.hint)

    def _undefined(self, reference: Reference, text: Text, scope: Bindings) -> None:
        name, span = reference.name, text.locate(reference.offset)
        target = self._templates.get(name)
        if isinstance(target, Function):
            params = ", ".join(param.name for param in target.params)
            message = f"`{name}` is a function: it has no value until it is called"
            self._error("function-not-called", message, span, f"write {name}({params})")
            return
        if name in GLOBALS:
            self._error("function-not-called", f"`{name}` is a function and was not called", span)
            return
        hint = did_you_mean(name, scope) or _BOUND_BY.get(name)
        if hint is None and self._in_function is not None:
            hint = f"the function `{self._in_function}` sees its parameters and nothing else: {listed(scope)}"
        elif hint is None:
            hint = f"in scope here: {listed(scope)}" if scope else f'declare it: <input name="{name}"/>'
        self._error("undefined-variable", f"`{name}` is not defined", span, hint)

    def _error(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic("error", code, message, span, hint))

    def _warn(self, code: str, message: str, span: Span, hint: str | None = None) -> None:
        self.diagnostics.append(Diagnostic("warning", code, message, span, hint))

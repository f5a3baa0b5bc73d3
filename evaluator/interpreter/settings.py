"""The Handler's configuration for one task: its profile with the template's overrides, placeholders resolved."""

from __future__ import annotations

from evaluator.binding.inputs import resolve_setting
from evaluator.binding.scopes import Scope
from evaluator.handler.config import HandlerConfig
from evaluator.interpreter.frame import Run
from evaluator.nodes import Task


def handler_config(run: Run, task: Task, scope: Scope) -> HandlerConfig:
    """Raises: ExpressionError, if a placeholder's value does not fit; ConfigurationError, for an unknown profile."""
    said = task.handler
    if said is None:
        return run.services.profile(run.profile)
    config = run.services.profile(run.profile or said.ref)
    return config.override(
        max_turns=resolve_setting(said.max_turns, "int", scope, name="max_turns", minimum=1),
        max_context_fraction=resolve_setting(
            said.max_context_fraction, "float", scope, name="max_context_fraction", minimum=0, maximum=1
        ),
        max_output_tokens=resolve_setting(said.max_output_tokens, "int", scope, name="max_output_tokens", minimum=1),
        timeout_s=resolve_setting(said.timeout_s, "float", scope, name="timeout", minimum=0),
        max_cost_usd=resolve_setting(said.max_cost_usd, "float", scope, name="max_cost", minimum=0),
        script_memory_mb=resolve_setting(said.script_memory_mb, "int", scope, name="script_memory", minimum=1),
    )

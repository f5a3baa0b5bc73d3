"""The conformance suite of backends: named checks, each against a loopback server that misbehaves
on demand.

    from evaluator.testing import CHECKS

    @pytest.mark.parametrize("check", CHECKS, ids=str)
    def test_conformance(check):
        asyncio.run(check.run(lambda base_url: MyBackend(base_url)))

or, all at once, `await check_backend(lambda base_url: MyBackend(base_url))`. The checks use
`assert`, so they refuse to run under `python -O`.
"""

from __future__ import annotations

from evaluator.testing import answer_checks, failure_checks
from evaluator.testing.backend_case import MODEL, Check, Factory

CHECKS: tuple[Check, ...] = (*answer_checks.CHECKS, *failure_checks.CHECKS)


async def check_backend(factory: Factory, *, wire: bool = True, model: str = MODEL) -> None:
    """Runs every check; with `wire=False` only those that need no server.

    Raises: AssertionError, which lists every check that failed.
    """
    failures: list[str] = []
    for check in CHECKS:
        if check.wire and not wire:
            continue
        try:
            await check.run(factory, model=model)
        except AssertionError as exc:
            failures.append(f"{check.name}: {exc}")
    if failures:
        raise AssertionError("\n".join(failures))

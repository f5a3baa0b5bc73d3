"""A template on another node, as a background task of type `r`.

The caller sends its Evaluator, without environment variables: the node uses its own keys. The node
records the task in a folder of its own, under ids that the caller has reserved, and returns the
task files at the end, whatever the end is. Those of a node that is lost are lost with it.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from evaluator.batch.engines.host import VERSIONS, EvaluatorRecipe, evaluator_recipe
from evaluator.batch.engines.taskfiles import OwnFolder, store_files
from evaluator.errors import ConfigurationError, RecordError, UsageError
from evaluator.errors.messages import LOGGER
from evaluator.errors.results import Outcome
from evaluator.files.open_below import not_writable
from evaluator.interpreter.background import NoBackground
from evaluator.interpreter.evaluator import Evaluator
from evaluator.jobs.in_process import EvaluationWork
from evaluator.jobs.scripts import NodeCommand, NodeWork, OpenNode, RemoteCommand
from evaluator.jobs.tasks import End
from evaluator.lazy_dataclass import frozen

IDS = 1_000
"""So many ids are reserved for the task and its subtasks."""
_NO_BACKGROUND = (
    "a template on another node cannot start background tasks; take their tools out of the "
    "template and the profile, or start it without --node"
)


@frozen
class _Request:
    evaluator: EvaluatorRecipe
    template: str
    inputs: Mapping[str, Any]
    first_id: int


class NodeTemplate(NodeCommand):
    """One template on this node. Its output is the transcript of its messages."""

    async def run(self, command: Any) -> Any:
        """Evaluates the template of a packed request, which says for which versions it was made.

        Returns: its End, and its task files by id.
        """
        versions, packed = command
        if versions != VERSIONS:
            raise ConfigurationError(
                f"this node has {VERSIONS}, the caller {versions}; install the same everywhere"
            )
        request: _Request = pickle.loads(packed)
        folder = OwnFolder(request.first_id)
        try:
            evaluator = Evaluator(
                **request.evaluator.enter(LOGGER.warning),
                tasks_dir=folder.path,
                background=NoBackground(_NO_BACKGROUND),
            ).with_code(request.evaluator.code)

            async def evaluate(on_message: Any, on_begin: Any) -> Outcome:
                return await evaluator.evaluate(
                    request.template, request.inputs, on_message=on_message, on_begin=on_begin
                )

            try:
                work = EvaluationWork("w", evaluate, evaluator.services.redactor)
                end = await self.perform(work)
            finally:
                await evaluator.aclose()
            return end, folder.all_files()
        finally:
            folder.remove()


class TemplateWork(NodeWork):
    """Evaluates a template on the node that `open_node` gives, which runs a NodeTemplate.

    Raises: UsageError, if the evaluator has no task files, or something cannot be sent.
    """

    is_watched = False

    def __init__(
        self, evaluator: Evaluator, template: str, inputs: Mapping[str, Any], open_node: OpenNode
    ) -> None:
        store = evaluator.services.store
        if store is None:
            raise UsageError("a template on another node needs a folder of task files here")
        self._store = store
        self._ids = store.reserve(IDS)
        request = _Request(
            evaluator_recipe(evaluator, {}, without=("background",)),
            template,
            inputs,
            first_id=self._ids[0],
        )
        super().__init__((VERSIONS, pickle.dumps(request)), open_node)

    async def run_on(self, remote: RemoteCommand) -> End:
        """Evaluates the template on the node, and stores its task files here."""
        end, files = await remote.run(self._command)
        kept = [(number, data) for number, data in files if number in self._ids]
        try:
            store_files(self._store.root, kept)
        except OSError as error:
            raise not_writable(self._store.root, error) from error
        if len(kept) < len(files):
            lost = len(files) - len(kept)
            raise RecordError(
                f"the node has returned {lost} task files beyond the {IDS - 1:,} ids that were "
                "reserved, which are not kept; start the template without --node"
            )
        return end

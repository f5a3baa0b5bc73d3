"""What every test may use. No test reaches a real model: keys are taken out of the environment here.

Properties try the same examples in every run, so that a run tells of the change that it was made for; others are
looked for with HYPOTHESIS_PROFILE=explore.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis.strategies import none

if TYPE_CHECKING:
    from evaluator import Evaluator

# Tests start hundreds of processes, each of which would compile the package again. So would each
# test process: this is why nothing of it is imported above.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

TESTS = Path(__file__).parent

# In memory, where there is room: tests wait tens of thousands of times until files are on the disk.
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 << 30:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

# A shell ignores Ctrl-C for what it starts in the background, and `nohup` the end of a terminal. Processes inherit that;
# tests send both signals to themselves.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The first tests are those of one worker. Modules that use LiteLLM are among them, which takes seconds to import in each
# worker, and so are the longest tests: others would wait for them at the end.
FIRST = {
    "test_attempts_environment.py",
    "test_attempts_hosts.py",
    "test_backends_conformance.py",
    "test_backends_litellm.py",
    "test_hosted_embeddings.py",
    "test_kill.py",
    "test_logprobs.py",
    "test_offered_functions.py",
    "test_package.py",
    "test_prompt_caches.py",
    "test_provider_batches.py",
    "test_providers_records.py",
    "test_providers_wires.py",
    "test_recovery_cuts.py",
    "test_recovery_faults.py",
    "test_sampling.py",
    "test_tools_images.py",
    "test_view_in_browser.py",
}

# That of the command `evaluator`.
GC_THRESHOLD = 50_000

settings.register_profile("steady", deadline=None, derandomize=True, database=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "steady"))


@given(none())
def first_example(nothing: None) -> None:
    """Hypothesis registers its generator of random numbers at the first example of a process, and warns if it finds no
    reference to it. From Python 3.14 on it finds none from an object that is frozen."""


def pytest_configure(config: pytest.Config) -> None:
    """Each worker begins to collect at another place, so that they share the work of compiling what is not compiled yet."""
    if config.args == config.getini("testpaths"):
        worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
        workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        places = [*TESTS.glob("test_*.py"), *{path.parent for path in TESTS.glob("*/**/test_*.py")}]
        places.sort()
        first = len(places) * worker // workers
        config.args[:] = map(str, places[first:] + places[:first])


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The objects of 12,000 collected tests stay to the end: the garbage collector does not look through them again and
    again, which took a tenth of the time. Nor does it run after every 700 allocations, as `evaluator` does not."""
    gc.disable()
    first_example()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD)
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: (item.path.name not in FIRST, item.nodeid.partition("::")[0]))


@pytest.fixture(autouse=True, scope="session")
def own_user_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Each test process has a user's folder of its own, and so have the processes that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVALUATOR_CONFIG_DIR", str(tmp_path_factory.getbasetemp() / "user"))
        patch.setenv("EVALUATOR_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_real_model() -> Iterator[None]:
    """No provider's key and no model name reaches a test, so that none can be billed. Tests that need another environment
    change it with `monkeypatch`, which returns it to this one."""
    from evaluator.handler.backends import KEYS

    with pytest.MonkeyPatch.context() as patch:
        for variable, _ in KEYS:
            patch.delenv(variable, raising=False)
        patch.delenv("EVALUATOR_MODEL", raising=False)
        patch.delenv("EVALUATOR_TRUST", raising=False)
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        yield


MakeEvaluator = Callable[..., "Evaluator"]


@pytest.fixture
def make_evaluator(tmp_path: Path) -> MakeEvaluator:
    """`make(xml, script=…)`: an Evaluator over the templates in `xml`, with task files in `tmp_path/tasks`."""
    from evaluator import Evaluator, SimulatedBackend, TemplateLibrary

    def make(xml: str = "", *, script: Any = None, **options: Any) -> Evaluator:
        folder = tmp_path / "templates"
        folder.mkdir(exist_ok=True)
        (folder / "t.xml").write_text(
            f"<library>{xml}</library>" if xml else "<library/>", encoding="utf-8"
        )
        library = TemplateLibrary.load(folder, shipped=False)
        assert not library.errors, "\n".join(map(str, library.errors))
        options.setdefault("backend", SimulatedBackend(script=script))
        options.setdefault("tasks_dir", tmp_path / "tasks")
        options.setdefault("roots", [tmp_path])
        return Evaluator(library, options.pop("handler", "offline"), **options)

    return make


def prompts(seen: list[Any]) -> list[str]:
    """The last user message of each request."""
    return [next(m.content for m in reversed(r.messages) if m.role == "user") for r in seen]


class Scripted:
    """A script that keeps the requests and answers by the first key that the prompt contains."""

    def __init__(self, answers: Mapping[str, Any] | None = None, default: Any = "ok") -> None:
        self.answers = dict(answers or {})
        self.default = default
        self.seen: list[Any] = []

    def __call__(self, request: Any) -> Any:
        self.seen.append(request)
        prompt = prompts([request])[0]
        for key, answer in self.answers.items():
            if key in prompt:
                return answer(prompt) if callable(answer) else answer
        return self.default

    @property
    def prompts(self) -> list[str]:
        return prompts(self.seen)


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted

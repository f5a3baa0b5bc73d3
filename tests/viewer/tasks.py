"""Background tasks as their folder records them, without running one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from evaluator.background import BackgroundStore, BackgroundTask, End
from evaluator.store.owners import current_owner

FOLDER = Path("tasks") / "background"
ID = "b12345678"


def add_task(
    root: Path, *, output: bytes | None = b"", suffix: str = "log", **changes: Any
) -> BackgroundTask:
    """Records a running task of this process."""
    folder = root / FOLDER
    task = BackgroundTask(
        ID,
        "b",
        "make all",
        "pending",
        str(folder / f"{ID}.{suffix}"),
        1_772_960_400.0,
        current_owner(),
    )
    task = replace(task, **changes)
    store = BackgroundStore(folder)
    store.add(task)
    store.begin(task.id)
    store.close()
    if output is not None:
        Path(task.output_file).write_bytes(output)
    return task


def end_task(root: Path, ended: End, task_id: str = ID) -> None:
    store = BackgroundStore(root / FOLDER)
    store.end(task_id, ended)
    store.close()


def append_output(task: BackgroundTask, line: str) -> None:
    with open(task.output_file, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")

"""Makes task files as a killed process leaves them."""

from __future__ import annotations

from pathlib import Path

from evaluator import Recording, TaskStore


def file_of(root: Path, task_id: int) -> Path:
    """Where the file of a task is."""
    return TaskStore(root / "tasks").path_of(task_id)


def cut(
    root: Path, path: str, *, task_id: int = 1, begun: bool = False, extra: bytes = b""
) -> None:
    """Leaves of a finished task's file what was there when the step at `path` began: nothing of it, or, with
    `begun`, that it was begun. `extra` is what else a crash left behind."""
    file = file_of(root, task_id)
    data = file.read_bytes()
    at = data.index(f"- **Path**: {path}\n".encode())
    rule = b"\n---\n\n"
    if begun:
        number = data[data.rindex(b"<!-- begin ", 0, at) :].split()[2]
        ends = [
            data.find(b"<!-- end %b " % number, at),
            data.find(b"\n---\n\n## Step %b (result)" % number, at),
        ]
        end = min(place for place in ends if place >= 0)
    else:
        end = data.rindex(rule, 0, at)
    active = root / "tasks" / "active" / file.name
    file.unlink()
    active.write_bytes(data[:end] + extra)


def reading(root: Path, task_id: int = 1) -> Recording:
    """The recording of a task."""
    return TaskStore(root / "tasks").read(task_id)

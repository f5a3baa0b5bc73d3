"""Trees of files, and indexes over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluator import GlobalIndex


@pytest.fixture
def tree(tmp_path: Path) -> Callable[..., Path]:
    """`tree({name: content}, folder)`: these files in `tmp_path/folder`."""

    def make(files: dict[str, str | bytes], folder: str = "tree") -> Path:
        root = tmp_path / folder
        root.mkdir(exist_ok=True)
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return root

    return make


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "memory.sqlite"


@pytest.fixture
def index(database: Path, tmp_path: Path) -> Iterator[GlobalIndex]:
    """An empty index whose paths are relative to `tmp_path`."""
    with GlobalIndex(database, relative_to=tmp_path) as made:
        yield made

from collections.abc import Iterator
from pathlib import Path

import pytest

from rayinfer.batches.owner import BatchOwner


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "batches"


@pytest.fixture
def owner(folder: Path) -> Iterator[BatchOwner]:
    owner = BatchOwner(folder)
    yield owner
    owner.close()

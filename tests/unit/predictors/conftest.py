"""Fixtures of the predictors' tests: the cache folder, the compiled kernels and tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import rayinfer_kernels
from rayinfer.config import engine_config
from rayinfer.predictors.build_runner import build_runner
from rayinfer.predictors.runner import Runner, RunnerItem
from support.tiny_models.tiny_encoders import VOCAB_SIZE

LENGTHS = (5, 1, 30, 5, 62, 17)
Build = Callable[..., Runner]


@pytest.fixture
def build(tmp_path: Path, kernel_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Build]:
    """Build runners by settings, with a cache folder of the test's own and the kernels that all tests share."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(kernel_folder)
    monkeypatch.setenv("RAYINFER_CACHE", str(cache))
    yield lambda folder, **settings: build_runner(engine_config(model=str(folder), **settings), folder)
    rayinfer_kernels.configure(None)


@pytest.fixture
def texts() -> list[list[int]]:
    """Token ids of texts of several lengths."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(4, VOCAB_SIZE, (length,), generator=generator).tolist() for length in LENGTHS]


@pytest.fixture
def pairs(texts: list[list[int]]) -> list[RunnerItem]:
    """Items to be classified, as pairs of texts."""
    return [RunnerItem(task="classify", token_ids=ids, num_first_tokens=(len(ids) + 1) // 2) for ids in texts]

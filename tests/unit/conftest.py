"""Fixtures shared by unit tests of several packages."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rayinfer_kernels
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models.tiny_tokenizers import single_bytes

with contextlib.suppress(ImportError):  # machines that only run the GPU tests may lack it
    from hypothesis import HealthCheck, settings

    # A busy machine takes longer over an example than Hypothesis allows it.
    settings.register_profile("rayinfer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("rayinfer")


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """One token per byte: the shortest real tokenizer."""
    return Tokenizer(single_bytes())


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch compute with one thread: for ranks that are threads themselves."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def compiled_kernels(kernel_folder: Path) -> Iterator[None]:
    """Run the C++ kernels, and the reference again afterwards."""
    rayinfer_kernels.configure(kernel_folder)
    assert rayinfer_kernels.cpu_kernels_status().is_active
    yield
    rayinfer_kernels.configure(None)

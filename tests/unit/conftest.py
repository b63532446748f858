"""What tests of several rooms need."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import rayinfer_kernels


@pytest.fixture
def compiled_kernels(kernel_folder: Path) -> Iterator[None]:
    """Run the C++ kernels, and the reference again afterwards."""
    rayinfer_kernels.configure(kernel_folder)
    assert rayinfer_kernels.cpu_kernels_status().is_active
    yield
    rayinfer_kernels.configure(None)

"""The C++ kernels, compiled once for all tests of this folder."""

import pytest
import torch

from rayinfer_kernels.cpu.build import CompilerSettings, CpuLibrary, build_cpu_library
from rayinfer_kernels.cpu.kernels import CpuKernels


@pytest.fixture(scope="session")
def library(kernel_folder) -> CpuLibrary:
    return build_cpu_library(kernel_folder, CompilerSettings("g++", "native"))


@pytest.fixture(scope="session", params=["native", "x86-64-v3", "x86-64"])
def isa_library(request, kernel_folder) -> CpuLibrary:
    """The kernels for each instruction set that has code of its own and runs here."""
    return build_cpu_library(kernel_folder, CompilerSettings("g++", request.param))


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request) -> torch.dtype:
    return request.param


@pytest.fixture
def kernels(library, dtype) -> CpuKernels:
    return CpuKernels(library.handle, dtype)


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)

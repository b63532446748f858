"""The C++ kernels, compiled once for all tests of this folder, for every instruction set that runs here."""

import functools
import platform
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rayinfer_kernels.cpu.build import CompilerSettings, CpuLibrary, build_cpu_library
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.cpu.processor import MACHINE_PATHS
from support.kernels.pairwise import pairwise_choice

MOST_CASES = 20  # of a test that always runs whole
SANITIZER_FLAGS = ("-fsanitize=address", "-fno-omit-frame-pointer", "-g")


def settings_for(isa: str) -> CompilerSettings:
    return CompilerSettings("g++", isa)


@functools.cache
def runnable_isas() -> list[str]:
    """The instruction sets that have code of their own, as far as this machine has them."""
    native = settings_for("native").features()
    machine = platform.machine()
    if machine not in MACHINE_PATHS:
        return ["native"]
    others = ("avx512", "avx2-vnni", "avx2", "portable") if machine == "x86_64" else ("neon-dotprod", "portable")
    return ["native", *(isa for isa in others if settings_for(isa).features() <= native)]


def default_isas(isas: list[str]) -> list[str]:
    """Choose the machine's own and AVX2's, or the portable one where its own is AVX2's."""
    other = "avx2" if {"avx512", "avx2-vnni"} & set(isas) else "portable"
    return [isa for isa in isas if isa in ("native", other)]


@pytest.hookimpl(tryfirst=True)  # before marks and names choose
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out of long tests the cases without a pair of values that no other case has."""
    if config.getoption("--every-case") or config.getoption("--with-sanitizer", default=False):
        return
    functions = defaultdict(list)
    for item in items:
        if Path(__file__).parent in item.path.parents and isinstance(item, pytest.Function):
            functions[item.path, item.originalname].append(item)
    left_out = {
        item
        for cases in functions.values()
        if len(cases) > MOST_CASES
        for item in set(cases).difference(pairwise_choice(cases, _values))
    }
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _values(item: pytest.Function) -> dict[str, int]:
    """Return which object a test has for each parameter: many compare with nothing, and all cases share them."""
    return {name: id(value) for name, value in item.callspec.params.items()}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--with-sanitizer",
        action="store_true",
        help="compile the kernels with AddressSanitizer, for every instruction set that this machine has",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Test two instruction sets, as all of them take minutes; the run with the sanitizer has all."""
    if "isa_library" in metafunc.fixturenames:
        isas = runnable_isas()
        has_all = metafunc.config.getoption("--with-sanitizer", default=False)
        metafunc.parametrize("isa_library", isas if has_all else default_isas(isas), indirect=True, scope="session")


@pytest.fixture(scope="session")
def build(request, kernel_folder):
    """Compile the kernels for an instruction set, or take what was compiled before."""
    flags = SANITIZER_FLAGS if request.config.getoption("--with-sanitizer", default=False) else ()
    return lambda isa: build_cpu_library(kernel_folder, replace(settings_for(isa), extra_flags=flags))


@pytest.fixture(scope="session")
def library(build) -> CpuLibrary:
    return build("native")


@pytest.fixture(scope="session")
def isa_library(request, build) -> CpuLibrary:
    """The kernels for an instruction set that has code of its own and runs here."""
    return build(request.param)


@pytest.fixture
def isa_kernels(isa_library, dtype) -> CpuKernels:
    return CpuKernels(isa_library.handle, dtype)


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

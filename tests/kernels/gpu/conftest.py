"""Kernels of Triton, run by its interpreter on CPU tensors, or compiled where there is a GPU: then all are `gpu` tests.

tests/conftest.py switches the interpreter on, before anything imports Triton.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from xdist.scheduler import LoadScheduling

from rayinfer_kernels.gpu.language import IS_INTERPRETED
from support.kernels.pairwise import case_name, every_case, pairwise
from support.kernels.triton_interpreter import mend_interpreter

MOST_CASES = 40  # of a kernel, every day

if IS_INTERPRETED:
    mend_interpreter()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "axes(name=values, ...): what a test's `case` is made of, a value of each")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `case` gets those of its axes: a pairwise cover, or all."""
    for axes in metafunc.definition.iter_markers("axes"):
        wants_all = metafunc.config.getoption("--every-case")
        cases = list(every_case(axes.kwargs)) if wants_all else pairwise(axes.kwargs, at_most=MOST_CASES)
        metafunc.parametrize("case", cases, ids=case_name)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On a machine with a GPU these tests need it, so that `-m gpu` runs them all; without one nothing runs those."""
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    if IS_INTERPRETED:
        need_gpu = {item for item in ours if item.get_closest_marker("gpu")}
        config.hook.pytest_deselected(items=list(need_gpu))
        items[:] = [item for item in items if item not in need_gpu]
    else:
        for item in ours:
            item.add_marker(pytest.mark.gpu)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScheduling | None:
    """Every case is shared out by itself, not by file: most belong to two of them."""
    return LoadScheduling(config, log) if config.getoption("--every-case") else None


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if IS_INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Whichever tests ran before."""
    torch.manual_seed(0)

"""Kernels of Triton, run by its interpreter on CPU tensors, or compiled where there is a GPU: then all are `gpu` tests.

tests/conftest.py switches the interpreter on, before anything imports Triton.
"""

from pathlib import Path

import pytest
import torch

from pairwise import case_name, every_case, pairwise
from rayinfer_kernels.gpu.language import IS_INTERPRETED
from triton_interpreter import let_numbers_end_loops

if IS_INTERPRETED:
    let_numbers_end_loops()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-case", action="store_true", help="test the whole product of a kernel's axes, for hours")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes a `case` gets those of its module's AXES: a pairwise cover, or all."""
    if "case" in metafunc.fixturenames:
        wants_all = metafunc.config.getoption("--every-case", default=False)
        cases = list(every_case(metafunc.module.AXES)) if wants_all else pairwise(metafunc.module.AXES)
        assert wants_all or len(cases) <= 40, f"{len(cases)} cases are too many for every day"
        metafunc.parametrize("case", cases, ids=case_name)


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """On a machine with a GPU these tests need it: `-m gpu` runs them all."""
    if not IS_INTERPRETED:
        for item in items:
            if Path(__file__).parent in item.path.parents:
                item.add_marker(pytest.mark.gpu)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cpu" if IS_INTERPRETED else "cuda")


@pytest.fixture(autouse=True)
def same_numbers_every_time() -> None:
    """Whichever tests ran before."""
    torch.manual_seed(0)

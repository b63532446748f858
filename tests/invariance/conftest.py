"""The model, the requests, and what each of them got alone: everything here is held against that."""

from pathlib import Path

import pytest

from support.golden.invariance_requests import MixedRequest, make_mixed_model, mixed_requests
from support.golden.invariance_runs import ROOMY, Run, open_llm, run_alone


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_loops: also runs in the loop that waits for each step")


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_mixed_model(tmp_path_factory.mktemp("mixed"))


@pytest.fixture(scope="session")
def requests() -> list[MixedRequest]:
    return mixed_requests()


@pytest.fixture(scope="session")
def alone(folder: Path, requests: list[MixedRequest]) -> Run:
    """One request after the other, none of which finds anything in a cache."""
    with open_llm(folder, enable_prefix_caching=False, **ROOMY) as llm:
        return run_alone(llm, requests)

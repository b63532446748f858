"""Services to be broken, each started once for all tests that can share it, and the table of what became of them."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_load import Answer, record_answers, request_body
from fault_report import FaultReport
from fault_runs import STEP_S
from faulty_service import FaultyService, Host
from service_client import wait_until
from tiny_models import make_tiny_llama

REPORT = pytest.StashKey[FaultReport]()
NUM_REQUESTS = 12


def pytest_configure(config: pytest.Config) -> None:
    config.stash[REPORT] = FaultReport()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    report = config.stash[REPORT]
    if not report.rows:
        return
    terminalreporter.section("faults")
    terminalreporter.write_line(report.as_markdown())
    if folder := config.getoption("--fault-results"):
        report.write(Path(folder), "# Faults")


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> FaultReport:
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that may run for thousands of tokens."""
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny", max_position_embeddings=8192)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """One Ray for the applications of all files."""
    host = Host(tmp_path_factory.mktemp("host"))
    (host.switches / "slow-steps").write_text(STEP_S)
    yield host
    host.end()


@pytest.fixture(scope="session")
def model_args(tiny_model: Path) -> Callable[..., dict[str, Any]]:
    """Settings of two engines of the tiny model, but for what is given."""

    def settings(**changes: Any) -> dict[str, Any]:
        own = {"name": "tiny", "model": str(tiny_model), "dtype": "float32", "num_kv_blocks": 4096, "num_replicas": 2}
        return own | changes

    return settings


@pytest.fixture(scope="session")
def _pair(host: Host, model_args: Callable[..., dict[str, Any]]) -> Iterator[FaultyService]:
    service = FaultyService(host, "pair", [model_args()])
    yield service
    service.delete()


@pytest.fixture
def pair(_pair: FaultyService) -> FaultyService:
    """Two engines, both up, whatever the test before has done to them."""
    wait_until(_pair.is_whole, 120.0)
    return _pair


@pytest.fixture(scope="session")
def expected(_pair: FaultyService) -> dict[int | None, Answer]:
    """The answers to requests of all kinds, by number, before anything was broken."""
    return record_answers(_pair.url, {number: request_body(number) for number in range(NUM_REQUESTS)})

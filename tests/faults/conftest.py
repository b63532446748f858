"""Services to be broken, each started once for all tests that can share it, and the table of what became of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.faults.fault_load import Answer, record_answers, request_body
from support.faults.fault_models import FaultModel, embedded_model, tiny_model
from support.faults.fault_report import FaultReport
from support.faults.fault_runs import prefill_time
from support.faults.faulty_service import FaultyService, Host
from support.services.polling import wait_until

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
        report.write(Path(folder), f"# Faults of services with the {config.getoption('--fault-model')} model")


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> FaultReport:
    return pytestconfig.stash[REPORT]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> FaultModel:
    """The tiny model, for what would take the embedded one too long."""
    return tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def model(pytestconfig: pytest.Config, tiny: FaultModel) -> FaultModel:
    """The model that this run is about."""
    return embedded_model() if pytestconfig.getoption("--fault-model") == "embedded" else tiny


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory, model: FaultModel) -> Iterator[Host]:
    """One Ray for the applications of all files."""
    host = Host(tmp_path_factory.mktemp("host"), model)
    yield host
    host.end()


@pytest.fixture(scope="session")
def _pair(host: Host, model: FaultModel) -> Iterator[FaultyService]:
    service = FaultyService(host, "pair", [model.args()])
    yield service
    service.delete()


@pytest.fixture
def pair(_pair: FaultyService) -> FaultyService:
    """Two engines, both up, whatever the test before has done to them."""
    wait_until(_pair.is_complete, 120.0)
    return _pair


@pytest.fixture(scope="session")
def expected(_pair: FaultyService, model: FaultModel) -> dict[int | None, Answer]:
    """The answers to requests of all kinds, by number, before anything was broken."""
    bodies = {number: request_body(number, max_tokens=model.num_tokens) for number in range(NUM_REQUESTS)}
    return record_answers(_pair.url, bodies)


@pytest.fixture(scope="session")
def prefill_s(_pair: FaultyService, expected: dict[int | None, Answer]) -> float:
    """Return how long one engine takes to compute again what half of the load's streams had."""
    return prefill_time(_pair)

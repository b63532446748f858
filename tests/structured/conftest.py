from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-results", action="store_true", help="write the table of tests/structured/README.md anew")


@pytest.fixture
def results_file(request) -> Path | None:
    return Path(__file__).parent / "README.md" if request.config.getoption("--write-results") else None

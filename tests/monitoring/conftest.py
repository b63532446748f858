"""An option that keeps pictures of the dashboards."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run keep the pictures as files."""
    parser.addoption("--pictures", metavar="FOLDER", help="draw each dashboard here, as PNG")

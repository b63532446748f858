"""An option that keeps the plots of the notebooks."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a run keep the plots as files."""
    parser.addoption("--plots", metavar="FOLDER", help="write each plot of the notebooks here, as PNG")

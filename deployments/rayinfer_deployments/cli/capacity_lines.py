"""The sizes that a service's engines were built with, as lines of text."""

from collections.abc import Mapping
from typing import Any


def capacity_lines(status: Mapping[str, Any]) -> list[str]:
    """List the different capacities of each model's engines, from the answer to the command `status`."""
    capacities = {
        (model["name"], engine["capacity"]): None
        for router in status["routers"]
        for model in router["models"]
        for engine in model["engines"]
    }
    return [f"engine of {name}: {capacity}" for name, capacity in capacities]

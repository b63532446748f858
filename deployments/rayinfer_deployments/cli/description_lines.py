"""Sizes that a service's engines were built with, and the defaults of their requests, as lines of text."""

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


def default_lines(status: Mapping[str, Any]) -> list[str]:
    """List the default sampling parameters of each model, from the answer to the command `status`."""
    lines = {
        f"default sampling parameters of {model['name']}: {_in_words(defaults)}": None
        for router in status["routers"]
        for model in router["models"]
        for defaults in model["default_sampling_params"]
    }
    return list(lines)


def _in_words(defaults: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in defaults.items()) or "none"

"""Types of the generated messages: none."""

from typing import Any

def __getattr__(name: str) -> Any: ...

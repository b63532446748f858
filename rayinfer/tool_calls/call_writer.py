"""The deltas of an answer as they are found."""

import secrets
import string
from collections.abc import Mapping
from typing import Any

from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta, ToolCallDelta

_ALPHANUMERIC = string.ascii_letters + string.digits


class CallWriter:
    """Collects deltas, and gives every call its index and id.

    `tools` are the schemas of the parameters of the tools that may be called, by their names.
    """

    def __init__(
        self, tools: Mapping[str, Mapping[str, Any]], *, has_short_ids: bool = False, max_calls: int | None = None
    ) -> None:
        self.tools = tools
        self._has_short_ids = has_short_ids
        self._max_calls = max_calls
        self._deltas: list[ChatDelta] = []
        self.num_calls = 0

    def begin(self, name: str) -> None:
        """Begin a call."""
        self.num_calls += 1
        if self._is_wanted:
            self._deltas.append(ToolCallDelta(index=self.num_calls - 1, id=self._new_id(), name=name))

    def add_arguments(self, text: str) -> None:
        """Add to the arguments of the last call."""
        if self._is_wanted:
            self._deltas.append(ToolCallDelta(index=self.num_calls - 1, arguments=text))

    def add(self, name: str, arguments: str) -> None:
        """Add a whole call."""
        self.begin(name)
        self.add_arguments(arguments)

    def add_text(self, text: str) -> None:
        """Add text of the answer."""
        if text:
            self._deltas.append(TextDelta(text))

    def add_reasoning(self, text: str) -> None:
        """Add text of the reasoning."""
        if text:
            self._deltas.append(ReasoningDelta(text))

    def take(self) -> list[ChatDelta]:
        """Return the deltas since the last time."""
        deltas, self._deltas = self._deltas, []
        return deltas

    @property
    def _is_wanted(self) -> bool:
        return self._max_calls is None or self.num_calls <= self._max_calls

    def _new_id(self) -> str:
        if self._has_short_ids:  # Mistral's templates refuse any other
            return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(9))
        return f"call_{secrets.token_hex(12)}"

"""Sampling settings of the running batch, one row per request, gathered by row number."""

import numpy as np
import numpy.typing as npt

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams

_NO_LAST_POSITION = 2**63 - 1
_GREEDY_BELOW = 1e-5  # dividing by less would overflow float32, and the most likely token wins anyway

ROW = np.dtype(
    [
        ("is_used", np.bool_),
        ("is_greedy", np.bool_),
        ("is_penalized", np.bool_),
        ("has_rules", np.bool_),  # about single tokens
        ("has_grammar", np.bool_),
        ("temperature", np.float32),
        ("top_k", np.int64),  # the vocabulary's size when it is off
        ("top_p", np.float64),
        ("min_p", np.float32),
        ("typical_p", np.float64),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("penalty_slot", np.int64),  # valid where is_penalized
        ("seed", np.int64),  # the bits of the 64-bit seed
        ("choice", np.int64),
        ("min_end_position", np.int64),  # the first position where an end token may stand; 0 where none is held back
        ("last_position", np.int64),  # of the request's last token
        (
            "num_logprobs",
            np.int64,
        ),  # tokens with logprobs to return: 0, or 1 + `logprobs`
    ]
)

RowSettings = npt.NDArray[np.void]  # of dtype ROW


class SamplingTable:
    """Rows of settings on the host, so that choosing what a batch needs does not wait for the device."""

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: RowSettings = np.zeros(max_num_rows, dtype=ROW)
        self._is_plain = np.zeros(max_num_rows, np.bool_)  # greedy, without any other setting

    def fill(
        self,
        row: int,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        min_end_position: int,
        last_position: int | None = None,
        penalty_slot: int | None,
    ) -> None:
        """Write one request's settings over whatever the row held."""
        settings = self._rows[row]
        settings["is_greedy"] = params.temperature < _GREEDY_BELOW
        settings["is_penalized"] = penalty_slot is not None
        settings["has_rules"] = params.has_token_rules
        settings["has_grammar"] = params.structured_outputs is not None
        settings["temperature"] = max(params.temperature, _GREEDY_BELOW)
        settings["top_k"] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        settings["top_p"] = params.top_p
        settings["min_p"] = params.min_p
        settings["typical_p"] = params.typical_p
        settings["repetition_penalty"] = params.repetition_penalty
        settings["presence_penalty"] = params.presence_penalty
        settings["frequency_penalty"] = params.frequency_penalty
        settings["penalty_slot"] = 0 if penalty_slot is None else penalty_slot
        settings["seed"] = _as_int64(seed)
        settings["choice"] = choice
        settings["min_end_position"] = min_end_position
        settings["last_position"] = _NO_LAST_POSITION if last_position is None else last_position
        settings["num_logprobs"] = 0 if params.logprobs is None else 1 + params.logprobs
        settings["is_used"] = True
        plain = not (params.has_penalties or params.has_token_rules or min_end_position or params.logprobs is not None)
        self._is_plain[row] = plain and settings["is_greedy"] and not settings["has_grammar"]

    def clear(self, row: int) -> None:
        """Forget the request in `row`."""
        self._rows[row] = np.zeros((), dtype=ROW)
        self._is_plain[row] = False

    def penalty_slot(self, row: int) -> int | None:
        """Return the slot of the penalty history of `row`, if there is one."""
        settings = self._rows[row]
        return int(settings["penalty_slot"]) if settings["is_penalized"] else None

    def at(self, rows: npt.NDArray[np.integer]) -> RowSettings:
        """Return a copy of the settings of `rows`, in that order; raises InvalidParameter for unused rows."""
        for row in rows[(rows < 0) | (rows >= len(self._rows))]:
            self.check(int(row))
        settings: RowSettings = self._rows[rows]
        if not settings["is_used"].all():
            raise InvalidParameter(f"rows {rows[~settings['is_used']].tolist()} hold no request", "rows")
        return settings

    def are_plain(self, rows: npt.NDArray[np.integer]) -> bool:
        """Return whether all rows are in use, greedy and without any other setting."""
        return bool(len(rows) and rows.min() >= 0 and rows.max() < len(self._is_plain) and self._is_plain[rows].all())

    def check(self, row: int) -> None:
        """Raise InvalidParameter if there is no such row."""
        if not 0 <= row < len(self._rows):
            raise InvalidParameter(f"row must be an integer from 0 to {len(self._rows) - 1}, got {row}", "row")


def _as_int64(seed: int) -> int:
    bits = seed & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits

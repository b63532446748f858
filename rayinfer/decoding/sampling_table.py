"""The sampling settings of the running batch, one row per request, ready to be gathered by row number."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams

_GREEDY_BELOW = 1e-5  # dividing by less would overflow float32, and the most likely token wins anyway

ROW = np.dtype(
    [
        ("is_entered", np.bool_),
        ("is_greedy", np.bool_),
        ("is_penalised", np.bool_),
        ("temperature", np.float32),
        ("top_k", np.int64),  # the vocabulary's size when it is off
        ("top_p", np.float64),
        ("min_p", np.float32),
        ("repetition_penalty", np.float32),
        ("presence_penalty", np.float32),
        ("frequency_penalty", np.float32),
        ("penalty_slot", np.int64),  # means something only where is_penalised
        ("seed", np.int64),  # the bits of the 64-bit seed
        ("choice", np.int64),
        ("min_end_position", np.int64),  # the first position where an end token may stand
    ]
)

RowSettings = npt.NDArray[np.void]  # of dtype ROW


class SamplingTable:
    """Rows of settings on the host, where deciding what a batch needs costs no look at the device."""

    def __init__(self, max_num_rows: int, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._rows: RowSettings = np.zeros(max_num_rows, dtype=ROW)
        # As wide as the longest set of end ids; shorter ones repeat their first id.
        self._end_token_ids = np.zeros((max_num_rows, 0), dtype=np.int64)

    def fill(
        self,
        row: int,
        params: SamplingParams,
        *,
        seed: int,
        choice: int,
        prompt_length: int,
        end_token_ids: Sequence[int],
        penalty_slot: int | None,
    ) -> None:
        """Write one request's settings over whatever the row held."""
        end_ids = sorted({token_id for token_id in end_token_ids if 0 <= token_id < self._vocab_size})
        self._write_end_ids(row, end_ids)
        settings = self._rows[row]
        settings["is_greedy"] = params.temperature < _GREEDY_BELOW
        settings["is_penalised"] = penalty_slot is not None
        settings["temperature"] = max(params.temperature, _GREEDY_BELOW)
        settings["top_k"] = min(params.top_k, self._vocab_size) if params.top_k > 0 else self._vocab_size
        settings["top_p"] = params.top_p
        settings["min_p"] = params.min_p
        settings["repetition_penalty"] = params.repetition_penalty
        settings["presence_penalty"] = params.presence_penalty
        settings["frequency_penalty"] = params.frequency_penalty
        settings["penalty_slot"] = 0 if penalty_slot is None else penalty_slot
        settings["seed"] = _as_int64(seed)
        settings["choice"] = choice
        settings["min_end_position"] = prompt_length + params.min_tokens if end_ids else 0
        settings["is_entered"] = True

    def clear(self, row: int) -> None:
        """Forget the request in `row`."""
        self._rows[row] = np.zeros((), dtype=ROW)

    def penalty_slot(self, row: int) -> int | None:
        """The slot of the history kept for `row`, if there is one."""
        settings = self._rows[row]
        return int(settings["penalty_slot"]) if settings["is_penalised"] else None

    def at(self, rows: npt.NDArray[np.integer]) -> RowSettings:
        """A copy of the settings of `rows`, in that order; raises InvalidParameter for a row that is not in use."""
        for row in rows[(rows < 0) | (rows >= len(self._rows))]:
            self.check(int(row))
        settings: RowSettings = self._rows[rows]
        if not settings["is_entered"].all():
            raise InvalidParameter(f"rows {rows[~settings['is_entered']].tolist()} hold no request", "rows")
        return settings

    def end_token_ids(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
        """The end ids of `rows` as a rectangle in which an id may repeat."""
        end_ids: npt.NDArray[np.int64] = self._end_token_ids[rows]
        return end_ids

    def check(self, row: int) -> None:
        """Raise InvalidParameter if there is no such row."""
        if not 0 <= row < len(self._rows):
            raise InvalidParameter(f"row must be an integer from 0 to {len(self._rows) - 1}, got {row}", "row")

    def _write_end_ids(self, row: int, end_ids: list[int]) -> None:
        num_rows, width = self._end_token_ids.shape
        if len(end_ids) > width:
            # Repeating the last column keeps what the rows mean; a row without ids is never read.
            column = self._end_token_ids[:, -1:] if width else np.zeros((num_rows, 1), dtype=np.int64)
            padding = np.repeat(column, len(end_ids) - width, axis=1)
            self._end_token_ids = np.concatenate((self._end_token_ids, padding), axis=1)
        if end_ids:
            self._end_token_ids[row] = end_ids[0]
            self._end_token_ids[row, : len(end_ids)] = end_ids


def _as_int64(seed: int) -> int:
    bits = seed & (2**64 - 1)
    return bits - 2**64 if bits >= 2**63 else bits

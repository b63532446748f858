"""Static input buffers of captured decode graphs, padded to the graph's batch size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.decoding.sampling_table import RowSettings
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.worker.step_inputs import StepInputs
from rayinfer.engine.worker.step_upload import StepUpload

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True)
class Padding:
    """Values of padding rows: by default such that no kernel reads or writes anything for them."""

    slot: int = -1
    context_length: int = 0
    block: int = 0

    @staticmethod
    def in_block(block: int, block_size: int) -> "Padding":
        """Write padding tokens to a scratch block, for kernels that need a valid one."""
        return Padding(slot=block * block_size, context_length=1, block=block)


def graph_lines(
    sizes: Sequence[int], *, max_blocks: int, padding: Padding, spare_row: int, device: torch.device
) -> dict[int, "GraphLines"]:
    """Allocate the inputs of the graphs of all sizes, largest last: they share memory, as no two run at once."""
    most = sizes[-1]
    tables = torch.full((most, max_blocks), padding.block, dtype=torch.int32, device=device)
    memory = torch.zeros(_num_bytes(most), dtype=torch.uint8, device=device)
    return {size: GraphLines(size, memory, tables, padding, spare_row=spare_row) for size in sizes}


class GraphLines:
    """Inputs of the graph of one size: staging buffer on the host, and static buffer on the device."""

    def __init__(
        self, size: int, memory: torch.Tensor, tables: torch.Tensor, padding: Padding, *, spare_row: int
    ) -> None:
        self.size = size
        self._padding = padding
        self._spare_row = spare_row
        self._num_bytes = _num_bytes(size)
        self._on_host = np.zeros(self._num_bytes, np.uint8)
        self._tables_on_host = np.full((size, 1), padding.block, np.int32)
        self._memory = memory[: self._num_bytes]
        self._tables = tables[:size]
        self._fields: dict[str, np.ndarray] = {}
        self.on_device: dict[str, torch.Tensor] = {}
        for name, start in list(_starts(size).items())[:-1]:
            count = size + 1 if name == "cu_seqlens_q" else size
            end = start + count * np.dtype(_FIELDS[name]).itemsize
            self._fields[name] = field = self._on_host[start:end].view(_FIELDS[name])
            self.on_device[name] = self._memory[start:end].view(torch.from_numpy(field[:0]).dtype)
        self._fields["cu_seqlens_q"][:] = np.arange(size + 1)
        self.empty()
        given = self.on_device
        batch = AttentionBatch(
            given["positions"],
            given["slot_mapping"],
            given["cu_seqlens_q"],
            given["seq_lens"],
            self._tables,
            given["rows"],
        )
        self.inputs = StepInputs(given["token_ids"], batch, given["rows"], given["continues"], given["rows"], None)

    def empty(self) -> None:
        """Fill in a step of padding alone."""
        self._fill_up(0, 1)

    def fill(self, plan: StepPlan, settings: RowSettings | None) -> None:
        """Copy in a plan and its sampling settings."""
        count, width = plan.block_tables.shape
        self._fill_up(count, width)
        self._tables_on_host[:count] = plan.block_tables
        for name in _PLANNED:
            self._fields[name][:count] = getattr(plan, name)
        self._fields["draw_position"][:count] = plan.seq_lens
        self._fields["continues"][:count] = False if plan.uses_last_sampled is None else plan.uses_last_sampled
        for name in _DRAWN:
            self._fields[name][:count] = _UNTOUCHED[name] if settings is None else settings[name]

    def _fill_up(self, count: int, width: int) -> None:
        """Pad the rows behind so many, with tables of so many blocks."""
        padding, fields = self._padding, self._fields
        for name in ("token_ids", "positions", "draw_position", "continues"):
            fields[name][count:] = 0
        fields["slot_mapping"][count:] = padding.slot
        fields["seq_lens"][count:] = padding.context_length
        fields["rows"][count:] = self._spare_row
        for name, value in _UNTOUCHED.items():
            fields[name][count:] = value
        self._tables_on_host = np.full((self.size, width), padding.block, np.int32)

    def send(self, upload: StepUpload) -> None:
        """Copy them to the device; what is behind the longest table is not read."""
        lines, tables = upload.send([self._on_host, self._tables_on_host])
        self._memory.copy_(lines)
        self._tables[:, : tables.shape[1]].copy_(tables)


# What every line of a step has, in this order in memory: of the plan, then of the sampler.
_PLANNED = {
    "token_ids": np.int32,
    "positions": np.int64,
    "slot_mapping": np.int64,
    "seq_lens": np.int32,
    "rows": np.int64,
}
_DRAWN: dict[str, Any] = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float64, "min_p": np.float32}
_DRAWN |= {"seed": np.int64, "choice": np.int64, "is_greedy": np.bool_}
_FIELDS: dict[str, Any] = {**_PLANNED, "continues": np.bool_, "cu_seqlens_q": np.int32, "draw_position": np.int64}
_FIELDS |= _DRAWN
_UNTOUCHED = {"temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "seed": 0, "choice": 0, "is_greedy": True}


def _starts(size: int) -> dict[str, int]:
    """Offset of each field in bytes, and at last the total size."""
    starts, start = {}, 0
    for name, dtype in _FIELDS.items():
        starts[name] = start
        start += -(-(size + 1) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return starts | {"": start}


def _num_bytes(size: int) -> int:
    return _starts(size)[""]

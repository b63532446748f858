"""Static input buffers of captured decode graphs, padded to the graph's batch size."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec import structs

from rayinfer.attention.paged_attention import AttentionBatch, WindowTables
from rayinfer.decoding.sampling_table import RowSettings
from rayinfer.engine.plan.step_plan import StepPlan
from rayinfer.engine.worker.padding import Padding, empty_plan, pad_plan
from rayinfer.engine.worker.step_inputs import StepInputs
from rayinfer.engine.worker.step_upload import StepUpload

_ALIGNMENT = 64  # bytes


def allocate_graph_inputs(
    sizes: Sequence[int],
    *,
    max_blocks: int,
    padding: Padding,
    padding_row: int,
    device: torch.device,
    has_windows: bool = False,
) -> dict[int, "GraphInputBuffers"]:
    """Allocate the inputs of the graphs of all sizes, largest last: they share memory, as no two run at once."""
    most = sizes[-1]
    tables = torch.full((most, max_blocks), padding.block, dtype=torch.int32, device=device)
    memory = torch.zeros(_num_bytes(most), dtype=torch.uint8, device=device)
    windows = None
    if has_windows:
        slots = torch.full((most,), padding.slot, dtype=torch.int64, device=device)
        windows = WindowTables(slots, torch.full_like(tables, padding.block))
    return {size: GraphInputBuffers(size, memory, tables, padding, padding_row, windows) for size in sizes}


class GraphInputBuffers:
    """Inputs of the graph of one size: staging buffer on the host, and static buffer on the device."""

    def __init__(
        self,
        size: int,
        memory: torch.Tensor,
        tables: torch.Tensor,
        padding: Padding,
        padding_row: int,
        windows: WindowTables | None = None,
    ) -> None:
        self.size = size
        self._padding = padding
        self._padding_row = padding_row
        num_bytes = _num_bytes(size)
        self._on_host = np.zeros(num_bytes, np.uint8)
        self._memory = memory[:num_bytes]
        self._tables = tables[:size]
        self._fields: dict[str, np.ndarray] = {}
        self.on_device: dict[str, torch.Tensor] = {}
        for name, start in list(_starts(size).items())[:-1]:
            count = size + 1 if name == "cu_seqlens_q" else size
            end = start + count * np.dtype(_FIELDS[name]).itemsize
            self._fields[name] = field = self._on_host[start:end].view(_FIELDS[name])
            self.on_device[name] = self._memory[start:end].view(torch.from_numpy(field[:0]).dtype)
        planned: dict[str, Any] = {name: self._fields[name] for name in _PLANNED}
        has_windows = windows is not None
        self._plan = structs.replace(empty_plan(size, size, 1, has_windows=has_windows), **planned)
        self._windows = None
        if windows is not None:
            self._windows = WindowTables(windows.slot_mapping[:size], windows.block_tables[:size])
        given = self.on_device
        batch = AttentionBatch(
            given["positions"],
            given["slot_mapping"],
            given["cu_seqlens_q"],
            given["seq_lens"],
            self._tables,
            given["rows"],
            windows=self._windows,
        )
        uses_last_sampled = given["uses_last_sampled"]
        self.inputs = StepInputs(given["token_ids"], batch, given["rows"], uses_last_sampled, given["rows"], None)

    def clear(self) -> None:
        """Fill in a step of padding alone."""
        self.fill(empty_plan(0, 0, 1), None)

    def fill(self, plan: StepPlan, settings: RowSettings | None) -> None:
        """Copy in a plan and its sampling settings, and pad both."""
        count, width = plan.block_tables.shape
        if width != self._plan.block_tables.shape[1]:
            self._plan = structs.replace(self._plan, block_tables=np.empty((self.size, width), np.int32))
            if self._windows is not None:
                self._plan = structs.replace(self._plan, window_tables=np.empty((self.size, width), np.int32))
        pad_plan(plan, self._plan, self._padding, self._padding_row)
        positions = self._fields["draw_position"]
        positions[:count] = plan.seq_lens
        positions[count:] = 0
        for name, greedy in _SETTINGS_OF_GREEDY.items():
            field = self._fields[name]
            field[:count] = greedy if settings is None else settings[name]
            field[count:] = greedy

    def send(self, upload: StepUpload) -> None:
        """Copy them to the device; what is behind the longest table is not read."""
        arrays: list[np.ndarray] = [self._on_host, self._plan.block_tables]
        if self._plan.window_tables is not None and self._plan.window_slot_mapping is not None:
            arrays += [self._plan.window_slot_mapping, self._plan.window_tables]
        memory, tables, *windows = upload.send(arrays)
        self._memory.copy_(memory)
        self._tables[:, : tables.shape[1]].copy_(tables)
        if self._windows is not None:
            slot_mapping, pages = windows
            self._windows.slot_mapping.copy_(slot_mapping)
            self._windows.block_tables[:, : pages.shape[1]].copy_(pages)


# What each request of a step has, in this order in memory: of the plan, then of the sampler.
_PLANNED = {
    "token_ids": np.int32,
    "positions": np.int64,
    "slot_mapping": np.int64,
    "seq_lens": np.int32,
    "rows": np.int64,
    "uses_last_sampled": np.bool_,
    "cu_seqlens_q": np.int32,
}
_SAMPLING: dict[str, Any] = {"temperature": np.float32, "top_k": np.int32, "top_p": np.float64, "min_p": np.float32}
_SAMPLING |= {"seed": np.int64, "choice": np.int64, "is_greedy": np.bool_}
_FIELDS: dict[str, Any] = {**_PLANNED, "draw_position": np.int64, **_SAMPLING}
_SETTINGS_OF_GREEDY = {
    "temperature": 1.0, "top_k": 1, "top_p": 1.0, "min_p": 0.0, "seed": 0, "choice": 0, "is_greedy": True,
}  # fmt: skip


def _starts(size: int) -> dict[str, int]:
    """Offset of each field in bytes, and at last the total size."""
    starts, start = {}, 0
    for name, dtype in _FIELDS.items():
        starts[name] = start
        start += -(-(size + 1) * np.dtype(dtype).itemsize // _ALIGNMENT) * _ALIGNMENT
    return starts | {"": start}


def _num_bytes(size: int) -> int:
    return _starts(size)[""]

"""bitsandbytes checkpoints of four bits: NF4 (Dettmers et al. 2023) and FP4, with plain or nested scales.

`weight` is uint8 [n / 2, 1] over the whole flattened matrix, the first number in the upper half. `quant_map` [16] says
what codes stand for, and `absmax` scales blocks of flattened numbers. Nested, `absmax` is uint8 itself: its
`nested_quant_map` [256] is scaled by `nested_absmax` for blocks of blocks, and `nested_offset` is added. The JSON of
`quant_state.bitsandbytes__nf4` (or `__fp4`) has sizes and shape.
"""

import json
import math
import re
from collections.abc import Collection
from typing import Any

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.quantized.format_reader import QuantizationSettings, TensorSource, check_tensor
from rayinfer.models.quantized.packed_integers import unpack_nibbles
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix

_STATE = re.compile(r"(.+)\.quant_state\.bitsandbytes__(nf4|fp4)")
_PARTS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_REMEDY = "save the model with load_in_4bit and the types nf4 or fp4, or use the unquantized checkpoint"


class BitsAndBytesReader:
    """Matrices of codes of four bits into a table of 16 numbers."""

    def __init__(self, settings: QuantizationSettings) -> None:
        if settings.fields.get("load_in_8bit"):
            settings.refuse("load_in_8bit (int8)", _REMEDY)
        if not (settings.fields.get("load_in_4bit") or settings.fields.get("_load_in_4bit")):
            settings.refuse("neither load_in_4bit nor load_in_8bit", _REMEDY)
        self._kind = settings.require("bnb_4bit_quant_type", ("nf4", "fp4"), _REMEDY, "fp4")
        settings.require("bnb_4bit_quant_storage", ("uint8",), _REMEDY, "uint8")
        self._is_nested = bool(settings.fields.get("bnb_4bit_use_double_quant"))

    @property
    def description(self) -> str:
        """The format in a few words."""
        return f"bitsandbytes, {self._kind}{', nested scales' * self._is_nested}"

    def matrices(self, names: Collection[str], tensors: TensorSource) -> dict[str, frozenset[str]]:
        """Find all weights that have a state."""
        known, found = frozenset(names), {}
        for name in names:
            if match := _STATE.fullmatch(name):
                weight = match[1]
                found[weight] = frozenset({weight, name, *(f"{weight}.{part}" for part in _PARTS)}) & known
        return found

    def shape(self, tensors: TensorSource, matrix: str) -> tuple[int, ...]:
        """Return [out_features, in_features]."""
        return tuple(self._state(tensors, matrix)["shape"])

    def read(self, tensors: TensorSource, matrix: str) -> QuantizedMatrix:
        """Read one matrix."""
        state = self._state(tensors, matrix)
        num_outputs, num_inputs = state["shape"]
        block_size, num_numbers = state["blocksize"], num_outputs * num_inputs
        num_blocks = -(-num_numbers // block_size)
        if math.prod(tensors.shape(matrix)) != -(-num_numbers // 2) or tensors.dtype(matrix) != torch.uint8:
            raise ModelLoadError(
                f"tensor {matrix} has shape {tensors.shape(matrix)} and dtype {tensors.dtype(matrix)}, expected"
                f" {-(-num_numbers // 2)} bytes of uint8"
            )
        check_tensor(tensors, f"{matrix}.quant_map", (16,), (torch.float32,))
        codes = unpack_nibbles(tensors.read(matrix).flatten(), is_high_first=True)[:num_numbers]
        absmax = self._absmax(tensors, matrix, num_blocks, state)
        table = tensors.read(f"{matrix}.quant_map").clone()
        if num_inputs % block_size == 0:
            groups, group_size = absmax.view(num_outputs, -1), block_size
        elif block_size % num_inputs == 0:
            per_block = block_size // num_inputs
            groups, group_size = absmax.repeat_interleave(per_block)[:num_outputs, None].contiguous(), num_inputs
        else:  # blocks go on in the next row: as many inputs as divide both have a scale of their own
            group_size = math.gcd(block_size, num_inputs)
            spread = absmax.repeat_interleave(block_size // group_size)
            groups = spread[: num_numbers // group_size].view(num_outputs, -1)
        return QuantizedMatrix(
            codes=codes.view(num_outputs, num_inputs), scales=groups, group_size=group_size, bits=4, table=table
        )

    def _absmax(self, tensors: TensorSource, matrix: str, num_blocks: int, state: dict[str, Any]) -> torch.Tensor:
        name = f"{matrix}.absmax"
        if "nested_blocksize" not in state:
            check_tensor(tensors, name, (num_blocks,), (torch.float32,))
            return tensors.read(name).clone()
        check_tensor(tensors, name, (num_blocks,), (torch.uint8,))
        check_tensor(tensors, f"{matrix}.nested_quant_map", (256,), (torch.float32,))
        size = state["nested_blocksize"]
        check_tensor(tensors, f"{matrix}.nested_absmax", (-(-num_blocks // size),), (torch.float32,))
        numbers = tensors.read(f"{matrix}.nested_quant_map")[tensors.read(name).long()]
        scales = tensors.read(f"{matrix}.nested_absmax").repeat_interleave(size)[:num_blocks]
        return numbers * scales + float(state.get("nested_offset", 0.0))

    def _state(self, tensors: TensorSource, matrix: str) -> dict[str, Any]:
        name = f"{matrix}.quant_state.bitsandbytes__{self._kind}"
        try:
            state = json.loads(bytes(tensors.read(name).tolist()))
            sizes = [*state["shape"], state["blocksize"], state.get("nested_blocksize", 1)]
            is_whole = len(state["shape"]) == 2 and all(type(size) is int and size > 0 for size in sizes)
            offset = state.get("nested_offset", 0.0)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelLoadError(f"tensor {name} is no state of bitsandbytes: {error}") from None
        if not is_whole:
            raise ModelLoadError(f"tensor {name} has wrong sizes: {sizes}")
        if type(offset) not in (int, float) or not math.isfinite(offset):
            raise ModelLoadError(f"tensor {name} has nested_offset {offset!r}, expected a number")
        return state  # type: ignore[no-any-return]

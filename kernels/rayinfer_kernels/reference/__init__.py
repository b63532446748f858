"""Reference implementation of every operation in plain torch, which faster kernels are tested against."""

from rayinfer_kernels.reference.attention import paged_attention, write_kv
from rayinfer_kernels.reference.elementwise import (
    add_rms_norm,
    gelu,
    gelu_tanh,
    gelu_tanh_and_mul,
    layer_norm,
    rms_norm,
    rotary_embedding,
    row_max,
    silu_and_mul,
)
from rayinfer_kernels.reference.grouped_linear import combine_rows, grouped_linear, packed_grouped_linear
from rayinfer_kernels.reference.layer_stack import layer_stack
from rayinfer_kernels.reference.linear import linear, pack, packed_gated_linear, packed_linear, packed_rows
from rayinfer_kernels.reference.philox import uniform
from rayinfer_kernels.reference.sampling import sample_rows

__all__ = [
    "add_rms_norm",
    "combine_rows",
    "gelu",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "grouped_linear",
    "layer_norm",
    "layer_stack",
    "linear",
    "pack",
    "packed_gated_linear",
    "packed_grouped_linear",
    "packed_linear",
    "packed_rows",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "row_max",
    "sample_rows",
    "silu_and_mul",
    "uniform",
    "write_kv",
]

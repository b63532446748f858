"""Reference implementation of every operation in plain torch, which faster kernels are tested against."""

from rayinfer_kernels.low_rank import add_low_rank_
from rayinfer_kernels.reference.attention import paged_attention, write_kv
from rayinfer_kernels.reference.elementwise import (
    add_rms_norm,
    argmax,
    gelu,
    gelu_tanh,
    gelu_tanh_and_mul,
    layer_norm,
    mask_rows_,
    rms_norm,
    rotary_embedding,
    silu_and_mul,
)
from rayinfer_kernels.reference.encoder_stack import encoder_stack
from rayinfer_kernels.reference.grouped_gemm import grouped_gemm, moe_combine, packed_grouped_gemm
from rayinfer_kernels.reference.layer_stack import layer_stack
from rayinfer_kernels.reference.linear import linear, pack, packed_embedding, packed_gated_linear, packed_linear
from rayinfer_kernels.reference.philox import uniform
from rayinfer_kernels.reference.sampling import sample_rows

__all__ = [
    "add_low_rank_",
    "add_rms_norm",
    "argmax",
    "encoder_stack",
    "gelu",
    "gelu_tanh",
    "gelu_tanh_and_mul",
    "grouped_gemm",
    "layer_norm",
    "layer_stack",
    "linear",
    "mask_rows_",
    "moe_combine",
    "pack",
    "packed_embedding",
    "packed_gated_linear",
    "packed_grouped_gemm",
    "packed_linear",
    "paged_attention",
    "rms_norm",
    "rotary_embedding",
    "sample_rows",
    "silu_and_mul",
    "uniform",
    "write_kv",
]

"""Compile the kernels for compute capability 9.0, in a process of its own, without a GPU.

Takes what would be launched on CPU tensors, compiles it instead and prints a line for each: name, registers, spills.
Usage: python hopper_compiler.py FOLDER_OF_RAYINFER_KERNELS
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)
sys.path.insert(0, sys.argv[1])

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from rayinfer_kernels.gpu.activations import gelu, gelu_tanh, gelu_tanh_and_mul, silu_and_mul
from rayinfer_kernels.gpu.argmax import argmax
from rayinfer_kernels.gpu.decode_attention import decode_attention
from rayinfer_kernels.gpu.fp8 import quantize_rows
from rayinfer_kernels.gpu.grouped_gemm import grouped_gemm, moe_combine
from rayinfer_kernels.gpu.low_rank import add_low_rank_
from rayinfer_kernels.gpu.mask_rows import mask_rows_
from rayinfer_kernels.gpu.norms import add_rms_norm, layer_norm, rms_norm
from rayinfer_kernels.gpu.paged_cache import PagedKVCache, allocate_paged_cache
from rayinfer_kernels.gpu.prefill_attention import prefill_attention
from rayinfer_kernels.gpu.rope_and_write import rope_and_write, write_kv
from rayinfer_kernels.gpu.sampling.philox import uniform
from rayinfer_kernels.gpu.sampling.sampling import sample_rows
from rayinfer_kernels.gpu.skinny_gemm import Norm, skinny_gemm
from rayinfer_kernels.implementation import RowMasks
from rayinfer_kernels.layer_stack import PackedLinear
from rayinfer_kernels.low_rank import LowRank, LowRankPart, LowRankTable, TokenSlots
from rayinfer_kernels.quantized_weight import quantize_float8

HOPPER = GPUTarget("cuda", 90, 32)
CPU = torch.device("cpu")
# Bytes of registers that do not fit, by kernel: those of Triton 3.6 cost less than programs for which there is no room.
MOST_STACK = {"candidates_kernel": 8, "_attend_chunk": 8} if triton.__version__.startswith("3.6.") else {}
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.float64: "*fp64",
    torch.bool: "*i1",
}


def compile_launch(function: Any, *arguments: Any, **settings: Any) -> None:
    """Stand in for a launch: the arguments' types are those that a launch on a GPU would give."""
    options = {
        name: settings.pop(name) for name in ("num_warps", "num_stages", "launch_pdl", "maxnreg") if name in settings
    }
    settings = {name: value for name, value in settings.items() if name not in ("grid", "warmup")}
    values = dict(zip((parameter.name for parameter in function.params), arguments, strict=False)) | settings
    signature, constants, attributes = {}, {}, {}
    for place, parameter in enumerate(function.params):
        value = values[parameter.name]
        is_constant, is_free = parameter.is_constexpr or value is None, not parameter.do_not_specialize
        kind = "constexpr" if is_constant else _type_of(value, is_free=is_free)
        signature[parameter.name] = kind
        if kind == "constexpr":
            constants[(place,)] = value
        elif isinstance(value, torch.Tensor) or (_is_round(value) and not parameter.do_not_specialize):
            attributes[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(fn=function, signature=signature, constexprs=constants, attrs=attributes)
    compiled = triton.compile(source, target=HOPPER, options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    print(function.__name__, f"registers={registers} stack={stack} shared={compiled.metadata.shared}", flush=True)
    assert stack <= MOST_STACK.get(function.__name__, 0), f"{function.__name__} spills registers: {values}"


def _type_of(value: Any, *, is_free: bool) -> str:
    if value is None or (is_free and isinstance(value, int) and value == 1):
        return "constexpr"
    if isinstance(value, torch.Tensor):
        return POINTERS[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


def _is_round(value: Any) -> bool:
    return isinstance(value, int) and value % 16 == 0


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, to which registers are spilled."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([str(tool), "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    assert found is not None, text
    return int(found[1]), int(found[2])


def cache_of(dtype: torch.dtype, head_dim: int, block_size: int = 16) -> PagedKVCache:
    return allocate_paged_cache(2, block_size, 2, head_dim, dtype, CPU)


def compile_all(dtype: torch.dtype, cache_dtype: torch.dtype, group: int, head_dim: int, block_size: int) -> None:
    """All kernels for one shape, with a softcap or a window in some."""
    cache, num_heads = cache_of(cache_dtype, head_dim, block_size), 2 * group
    lengths, table = torch.zeros(3, dtype=torch.int32), torch.zeros(2, 20, dtype=torch.int32)
    query = torch.zeros(2, num_heads, head_dim, dtype=dtype)
    decode_attention(query, cache, table, lengths[:2], 0.1, num_splits=8)
    decode_attention(query, cache, table, lengths[:2], 0.1, 100, 30.0, num_splits=1)
    prefill_attention(query, cache, table, lengths, lengths[:2], 0.1, max_query=1)
    prefill_attention(query, cache, table, lengths, lengths[:2], 0.1, max_query=4096)
    prefill_attention(query, cache, table, lengths, lengths[:2], 0.1, 100, 30.0, max_query=4096)
    norm, angles = torch.zeros(head_dim, dtype=dtype), torch.zeros(9, head_dim // 4 * 2, dtype=dtype)
    for num_tokens, norms in ((2, (norm, norm)), (1000, (None, None))):
        slot_mapping = torch.zeros(num_tokens, dtype=torch.int64)
        qkv = torch.zeros(num_tokens, (num_heads + 4) * head_dim, dtype=dtype)
        rope_and_write(qkv, num_heads, 2, angles, angles, slot_mapping, slot_mapping, cache, *norms, 1e-6)
        key = torch.zeros(num_tokens, 2, head_dim, dtype=dtype)
        write_kv(key, key, cache, slot_mapping)


def compile_rows(dtype: torch.dtype, width: int, vocab_size: int) -> None:
    """Compile the kernels over rows: norms, gates, experts, eight bits and sampling."""
    x, weight = torch.zeros(16, width, dtype=dtype), torch.zeros(width, dtype=dtype)
    rms_norm(x, weight, 1e-6)
    rms_norm(x.view(16, -1, 16), weight[:16], 1e-6, unit_offset=True)
    add_rms_norm(x, x, weight, 1e-6)
    layer_norm(x, weight, weight, 1e-6)
    for change in (silu_and_mul, gelu_tanh_and_mul, gelu, gelu_tanh):
        change(x)
    quantize_rows(x)
    for num_rows in (1, 2, 4):
        few, norm, square = x[:num_rows], Norm(weight, 1e-6), torch.zeros(width, width, dtype=dtype)
        skinny_gemm(few, PackedLinear(square, None), norm=norm)
        skinny_gemm(few, PackedLinear(square, weight), gate="silu", residual=few[:, : width // 2])
        skinny_gemm(few, PackedLinear(quantize_float8(square), None), norm=norm, gate="gelu_tanh")
    for num_rows in (16, 256, 512, 2048):
        rows = torch.zeros(num_rows, width, dtype=dtype)
        grouped_gemm(rows, torch.zeros(8, 96, width, dtype=dtype), torch.zeros(9, dtype=torch.int64))
    for rank in (8, 16, 64):
        table, slots = LowRankTable(2), TokenSlots(np.zeros(16), CPU)
        table[0] = [LowRankPart(x[:1], x[:1], rank, width, 0, width, 1.0)] * 2
        add_low_rank_(torch.zeros(16, width, dtype=dtype), x, LowRank(table, slots), is_gated=rank == 8)
    pairs = torch.zeros(16, 8, dtype=torch.int64)
    moe_combine(x, pairs, pairs.float())
    logits, integers, floats = torch.zeros(2, vocab_size, dtype=dtype), pairs[0], torch.zeros(8, dtype=torch.float64)
    argmax(logits)
    masks = RowMasks(pairs[0, :2], torch.zeros(2, -(-vocab_size // 32), dtype=torch.int32))
    mask_rows_(torch.zeros(2, vocab_size), *masks)
    for each in (None, masks):
        sample_rows(logits, floats, integers, floats, floats, floats, integers, each)
    uniform(integers, integers, integers)


if __name__ == "__main__":
    triton.runtime.jit.JITFunction.run = compile_launch
    compile_all(torch.bfloat16, torch.bfloat16, group=4, head_dim=128, block_size=16)
    compile_all(torch.bfloat16, torch.float8_e4m3fn, group=5, head_dim=80, block_size=64)
    compile_rows(torch.bfloat16, width=2048, vocab_size=151936)

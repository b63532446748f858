"""Every quantized format that is read, with a writer of tiny checkpoints."""

from functools import partial

from support.tiny_models.published_formats import (
    PublishedFormat,
    compressed,
    write_awq,
    write_float8,
    write_four_bit_table,
    write_gptq,
    write_int8_channels,
    write_mxfp4,
    write_packed,
)

_GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False, "desc_act": False}
_AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True, "version": "gemm"}
_FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3"}
_BNB = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
_INT4 = {"num_bits": 4, "strategy": "group", "group_size": 32}
_FLOAT8 = {"type": "float", "num_bits": 8}

FORMATS = {
    "gptq": PublishedFormat(_GPTQ, write_gptq),
    "gptq with a quantized head": PublishedFormat(_GPTQ | {"lm_head": True}, write_gptq, skipped=("nothing",)),
    "gptq symmetric": PublishedFormat(_GPTQ | {"sym": True}, partial(write_gptq, is_symmetric=True)),
    "gptq 8 bits": PublishedFormat(_GPTQ | {"bits": 8}, partial(write_gptq, bits=8)),
    "gptq a scale per output": PublishedFormat(_GPTQ | {"group_size": -1}, partial(write_gptq, group_size=-1)),
    "gptq desc_act": PublishedFormat(_GPTQ | {"desc_act": True}, partial(write_gptq, has_order=True)),
    "gptq desc_act without its name": PublishedFormat(_GPTQ, partial(write_gptq, has_order=True)),
    "gptq zero points of 0": PublishedFormat(_GPTQ, lambda weight: write_gptq(weight.abs())),
    "gptq_v2 by its format": PublishedFormat(_GPTQ | {"format": "gptq_v2"}, partial(write_gptq, zero_shift=0)),
    "gptq_v2": PublishedFormat(_GPTQ | {"checkpoint_format": "gptq_v2"}, partial(write_gptq, zero_shift=0)),
    "gptq some layers skipped": PublishedFormat(
        _GPTQ | {"modules_to_not_convert": ["o_proj"]}, write_gptq, skipped=("lm_head", "o_proj", "0.mlp.up_proj")
    ),
    "awq": PublishedFormat(_AWQ, write_awq),
    "fp8 blocks": PublishedFormat(_FP8 | {"weight_block_size": [128, 128]}, write_float8),
    "fp8 small blocks": PublishedFormat(
        _FP8 | {"weight_block_size": [24, 32]}, partial(write_float8, rows=24, columns=32)
    ),
    "fp8 a scale per matrix": PublishedFormat(
        _FP8, partial(write_float8, rows=None, columns=None, suffix="weight_scale")
    ),
    "compressed pack-quantized": PublishedFormat(compressed("pack-quantized", **_INT4), write_packed),
    "compressed with zero points": PublishedFormat(
        compressed("pack-quantized", **_INT4, symmetric=False), partial(write_packed, is_symmetric=False)
    ),
    "compressed actorder": PublishedFormat(
        compressed("pack-quantized", **_INT4, actorder="group"), partial(write_packed, has_order=True)
    ),
    "compressed int-quantized": PublishedFormat(compressed("int-quantized"), write_int8_channels),
    "compressed naive-quantized": PublishedFormat(compressed("naive-quantized"), write_int8_channels),
    "compressed float-quantized": PublishedFormat(
        compressed("float-quantized", **_FLOAT8), partial(write_float8, rows=1, columns=None, suffix="weight_scale")
    ),
    "compressed float blocks": PublishedFormat(
        compressed("float-quantized", **_FLOAT8, strategy="block", block_structure=[128, 128]),
        partial(write_float8, suffix="weight_scale"),
    ),
    "compressed mxfp4": PublishedFormat(
        compressed("mxfp4-pack-quantized", **_INT4 | {"type": "float"}),
        partial(write_mxfp4, names=("weight_packed", "weight_scale")),
    ),
    "nf4": PublishedFormat(_BNB, write_four_bit_table),
    "nf4 nested": PublishedFormat(
        _BNB | {"bnb_4bit_use_double_quant": True}, partial(write_four_bit_table, is_nested=True)
    ),
    "nf4 blocks over rows": PublishedFormat(_BNB, partial(write_four_bit_table, block=128)),
    "fp4": PublishedFormat(_BNB | {"bnb_4bit_quant_type": "fp4"}, partial(write_four_bit_table, kind="fp4")),
    "mxfp4": PublishedFormat({"quant_method": "mxfp4"}, write_mxfp4),
}

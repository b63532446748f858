import dataclasses

import torch

from rayinfer.benchmark.gpu.decode_kernel import DecodeSweep, decode_shapes, measure_decode_kernel

COPIED = 1e9  # bytes a second
TINY = DecodeSweep(
    groups=(2, 5),
    contexts=(20, 40),
    batches=(1, 3),
    num_kv_heads=1,
    head_dim=64,
    dtype=torch.float32,
    cache_dtype=torch.float32,
    max_pool_bytes=50_000,
    cold_bytes=30_000,
    num_repeats=1,
)


def test_every_combination_that_fits_gets_a_row(device):
    rows = [measure_decode_kernel(device, TINY, shape, COPIED) for shape in decode_shapes(TINY)]
    assert [(row.group, row.context, row.batch) for row in rows] == [
        (group, context, batch) for group in (2, 5) for context, batch in ((20, 1), (20, 3), (40, 1))
    ]  # three contexts of 40 take 61,440 bytes
    first = rows[0]
    assert first.num_bytes == 2 * 20 * 64 * 4 + 2 * 2 * 64 * 4
    assert all(row.seconds > 0 and row.share_of_copy > 0 and row.num_splits == 1 for row in rows)
    assert first.share_of_copy == first.bytes_per_s / COPIED
    assert first.bytes_per_s == first.num_bytes / first.seconds


def test_eight_bits_are_half_of_sixteen(device):
    sweep = dataclasses.replace(TINY, groups=(2,), contexts=(16,), batches=(1,), dtype=torch.bfloat16)
    (shape,) = decode_shapes(sweep)
    wide, narrow = (
        measure_decode_kernel(device, dataclasses.replace(sweep, cache_dtype=dtype), shape, COPIED).num_bytes
        for dtype in (torch.bfloat16, torch.float8_e4m3fn)
    )
    queries = 2 * 2 * 64 * 2
    assert narrow - queries == (wide - queries) / 2

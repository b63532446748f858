"""Rooflines beside figures that were computed by hand for 4.3 TB/s and 790 TFLOP/s."""

import pytest

from rayinfer.benchmark.gpu.cases import nano_workload
from rayinfer.benchmark.gpu.model_shapes import SHAPES, model_size
from rayinfer.benchmark.gpu.roofline import FP8_BYTES, CardLimits, Roofline, decode_steps

LIMITS = CardLimits(copy_bytes_per_s=4.3e12, matmul_flops_per_s=790e12)


def roofline(model, **settings):
    return Roofline(limits=LIMITS, size=model_size(SHAPES[model]), **settings)


def test_the_offline_workload_is_nano_vllms():
    workload = nano_workload()
    assert (workload.num_prompt_tokens, workload.num_output_tokens) == (142_827, 133_966)
    lengths = [len(prompt) for prompt in workload.prompts]
    steps = list(decode_steps(lengths, workload.output_lengths))
    assert len(steps) == 1023
    assert sum(batch for batch, _ in steps) == 133_966 - 256  # the first tokens come from the prompts


@pytest.mark.parametrize(
    ("model", "whole_s", "eight_bits_s"),
    [("Qwen3-0.6B", 3.70, 1.90), ("Qwen3-8B", 10.56, 5.46), ("Qwen3-14B", 16.59, 8.52)],
)
def test_offline(model, whole_s, eight_bits_s):
    workload = nano_workload()
    lengths = [len(prompt) for prompt in workload.prompts], workload.output_lengths
    assert roofline(model).offline_s(*lengths) == pytest.approx(whole_s, abs=0.005)
    eight_bits = roofline(model, kv_bytes=FP8_BYTES, weight_bytes=FP8_BYTES)
    assert eight_bits.offline_s(*lengths) == pytest.approx(eight_bits_s, abs=0.005)


@pytest.mark.parametrize(
    ("model", "one_ms", "many_ms", "prefill_ms"),
    [
        ("Qwen3-0.6B", 0.293, 4.48, 1.29),
        ("Llama-3.2-1B", 0.579, 1.97, 2.61),
        ("Qwen3-8B", 3.541, 10.17, 18.4),
        ("Qwen3-14B", 6.530, 14.92, 34.8),
    ],
)
def test_steps_and_prompts(model, one_ms, many_ms, prefill_ms):
    assert 1e3 * roofline(model).decode_step_s([600]) == pytest.approx(one_ms, abs=0.001)
    assert 1e3 * roofline(model).decode_step_s([600] * 256) == pytest.approx(many_ms, abs=0.01)
    assert 1e3 * roofline(model).prefill_s([1024]) == pytest.approx(prefill_ms, rel=0.004)


def test_decode_steps_shrink_as_requests_end():
    assert list(decode_steps([10, 20, 30], [1, 3, 2])) == [(2, 20 + 30 + 2), (1, 20 + 2)]
    assert list(decode_steps([10], [1])) == []

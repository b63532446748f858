"""Conservative time estimates of each workload, from the GPU's limits alone."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.benchmark.gpu.cases import Work, nano_workload
from rayinfer.benchmark.gpu.decode_kernel import decode_shapes
from rayinfer.benchmark.gpu.model_shapes import FLOAT_BYTES, SHAPES, model_size, tiny_shape
from rayinfer.benchmark.gpu.roofline import FP8_BYTES, CardLimits, Floor
from rayinfer.benchmark.gpu.scales import Scale
from rayinfer.benchmark.gpu.skinny_gemm import product_shapes
from rayinfer.benchmark.gpu.time_budget import Estimate

CHECKS = "checks"  # the first work of all
CHECK_S = 25.0  # three engines of two layers, and the reference on the host
OPEN_S = 12.0  # an engine: weights, blocks, recorded steps, the first requests; and the profile of its steps
COMPILE_S = 20.0  # Triton, for a model or a cache that no workload had before
WEIGHT_BYTES_PER_S = 4e9  # of random numbers
KERNEL_SHAPE_S = 0.5
PRODUCT_S = 2.0  # most are compiled first
LEAST_SHARE = 0.4  # of the floor, that is reached; and beside it
STEP_S = 1e-3  # that a step takes whatever it computes


def estimates(works: Sequence[Work], scale: Scale, limits: CardLimits, num_checks: int) -> dict[str, Estimate]:
    """Estimate the checks and all works, in their order: the first with a model's shape compiles for the others."""
    found = {CHECKS: Estimate(open_s=0.0, run_s=CHECK_S, num_runs=num_checks, run_name="types")}
    compiled: set[tuple[str, str]] = set()
    for work in works:
        kernels = work.model, work.kv_cache_dtype
        found[work.name] = _estimate(work, scale, limits, is_compiled=kernels in compiled)
        compiled.add(kernels)
    return found


def shape_of(work: Work, scale: Scale) -> Mapping[str, Any]:
    """Return the shape of a work's model."""
    return tiny_shape(work.model) if scale.is_tiny else SHAPES[work.model]


def floor_of(work: Work, scale: Scale, limits: CardLimits) -> Floor:
    """Return the floors of a work's model with its cache."""
    kv_bytes = FP8_BYTES if work.kv_cache_dtype == "fp8" else FLOAT_BYTES
    return Floor(limits=limits, size=model_size(shape_of(work, scale)), kv_bytes=kv_bytes)


def _estimate(work: Work, scale: Scale, limits: CardLimits, *, is_compiled: bool) -> Estimate:
    compile_s = 0.0 if is_compiled else COMPILE_S
    if work.kind == "kernel":
        num_shapes = 2 * len(decode_shapes(scale.kernel))
        return Estimate(open_s=compile_s, run_s=KERNEL_SHAPE_S, num_runs=num_shapes, run_name="shapes")
    if work.kind == "products":
        num_shapes = len(product_shapes(scale.products))
        return Estimate(open_s=compile_s, run_s=PRODUCT_S, num_runs=num_shapes, run_name="shapes")
    floor = floor_of(work, scale, limits)
    num_parameters = floor.size.body_parameters + floor.size.head_parameters
    open_s = OPEN_S + FLOAT_BYTES * num_parameters / WEIGHT_BYTES_PER_S
    if work.kind == "interference":
        run_s = open_s + scale.interference_s
        return Estimate(open_s=compile_s, run_s=run_s, num_runs=len(scale.chunks), run_name="sizes of steps")
    run_s = _run_s(work, scale, floor)
    return Estimate(open_s=open_s + compile_s, run_s=run_s, num_runs=scale.num_runs)


def _run_s(work: Work, scale: Scale, floor: Floor) -> float:
    if work.kind == "stream":
        prompt_len, output_len = scale.stream_lengths
        return output_len * (floor.decode_step_s([prompt_len + output_len]) / LEAST_SHARE + STEP_S)
    if work.kind == "prefill":
        num_prompts, length = scale.prompts
        num_steps = -(-num_prompts * length // scale.step_tokens)
        return floor.prefill_s([length] * num_prompts) / LEAST_SHARE + num_steps * STEP_S
    workload = nano_workload(scale.num_requests, scale.longest)
    lengths = [len(prompt) for prompt in workload.prompts]
    num_steps = workload.num_prompt_tokens // scale.step_tokens + max(workload.output_lengths)
    return floor.offline_s(lengths, workload.output_lengths) / LEAST_SHARE + num_steps * STEP_S

"""The minimal loop as a system under test."""

import gc
import itertools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.cases import NANO_TEMPERATURE, Case, Scale, even_workload, nano_workload
from rayinfer.benchmark.gpu.deadline import Deadline
from rayinfer.benchmark.gpu.peers.nano_attention import DecodeKernel, decode_kernels
from rayinfer.benchmark.gpu.peers.nano_engine import CONTEXT_STEP, NanoEngine
from rayinfer.benchmark.gpu.peers.nano_model import NanoModel, Operations
from rayinfer.benchmark.gpu.peers.peer_report import PeerJob, PeerRow
from rayinfer.benchmark.load.workloads import Workload

RUN_LIMIT_S = 120.0
NUM_RUNS = 2
CACHE_FRACTION = 0.9  # of the memory that is free beside the weights
KERNEL_NAMES = {"flash": "torch's flash kernel, exact lengths", "sdpa": "SDPA with a mask, contexts rounded up to 256"}


def measure_nano(job: PeerJob, folder: Path, device: torch.device) -> Iterator[PeerRow]:
    """Yield a row for each case and each decode kernel of torch; `folder` is not used."""
    deadline = Deadline(job.limit_s)
    for case in job.cases:
        operations = _operations(device)
        model = NanoModel(job.scale.shape_of(case), torch.bfloat16, device, operations)
        for kernel in decode_kernels(device, torch.bfloat16):
            yield _measure(case, job.scale, model, kernel, deadline)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _measure(case: Case, scale: Scale, model: NanoModel, kernel: DecodeKernel, deadline: Deadline) -> PeerRow:
    is_offline = case.kind == "offline"
    workload = (
        nano_workload(scale.num_requests, scale.longest) if is_offline else even_workload(1, *scale.stream_lengths)
    )
    prompts = [[token % model.vocab_size for token in prompt] for prompt in workload.prompts]
    longest = max(map(sum, zip(map(len, prompts), workload.output_lengths, strict=True)))
    max_len = -(-longest // CONTEXT_STEP) * CONTEXT_STEP
    engine = NanoEngine(model, _num_slots(workload, scale, model, max_len), max_len, kernel)
    temperature = NANO_TEMPERATURE if is_offline else 0.0
    row = PeerRow(
        peer="nano",
        version=f"(torch {torch.__version__})",
        settings=_settings(kernel, model, engine.num_slots),
        workload=case.name,
        model=case.model,
    )
    for number in range(1 + NUM_RUNS):  # in the first one everything is compiled and recorded
        limit = Deadline(min(RUN_LIMIT_S, deadline.remaining_s))
        run = engine.run(prompts, workload.output_lengths, temperature, limit)
        is_partial = run.num_tokens < workload.num_output_tokens
        if number == 0 and not is_partial:
            continue
        row.is_partial = is_partial
        row.tokens = run.num_tokens
        gaps = [later - earlier for earlier, later in itertools.pairwise(run.step_ends)]
        row.seconds.append(run.seconds if is_offline else statistics.median(gaps))
        if is_partial:
            break
    return row


def _num_slots(workload: Workload, scale: Scale, model: NanoModel, max_len: int) -> int:
    """Return the number of requests that fit into the memory at once."""
    num_slots = min(scale.max_num_seqs, workload.num_requests)
    if model.device.type != "cuda":
        return num_slots
    slot_bytes = 2 * model.num_layers * max_len * model.num_kv_heads * model.head_dim * model.dtype.itemsize
    return min(num_slots, int(CACHE_FRACTION * torch.cuda.mem_get_info(model.device)[0] / slot_bytes))


def _operations(device: torch.device) -> Operations:
    """Compile the element-wise operations for one model's sizes, where a compiler is installed."""
    if device.type != "cuda":
        return Operations()
    torch.compiler.reset()
    operations = Operations.compiled()
    try:
        operations.silu_multiply(torch.ones(2, 16, device=device))
    except Exception as error:  # any error of a missing compiler
        print(f"nano: torch.compile fails, so operations are not compiled: {error}", file=sys.stderr)  # noqa: T201
        return Operations()
    return operations


def _settings(kernel: DecodeKernel, model: NanoModel, num_slots: int) -> str:
    graphs = "CUDA graphs" if model.device.type == "cuda" else "no graphs"
    fused = "not compiled" if model.operations == Operations() else "compiled"
    how = f"{graphs}, element-wise operations {fused}"
    return f"prefill first, {num_slots} slots, {how}, decoding by {KERNEL_NAMES[kernel]}"

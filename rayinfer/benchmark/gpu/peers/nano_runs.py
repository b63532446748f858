"""The minimal loop as a participant."""

import gc
import itertools
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.cases import NANO_TEMPERATURE, Work, even_workload, nano_workload
from rayinfer.benchmark.gpu.estimates import shape_of
from rayinfer.benchmark.gpu.peers.nano_attention import DecodeKernel, decode_kernels
from rayinfer.benchmark.gpu.peers.nano_engine import CONTEXT_STEP, NanoEngine
from rayinfer.benchmark.gpu.peers.nano_model import NanoModel, Operations
from rayinfer.benchmark.gpu.peers.peer_rows import PeerJob, PeerRow
from rayinfer.benchmark.gpu.scales import Scale
from rayinfer.benchmark.gpu.time_budget import Deadline
from rayinfer.benchmark.load.workloads import Workload

RUN_LIMIT_S = 120.0
NUM_RUNS = 2
CACHE_SHARE = 0.9  # of the memory that is free beside the weights
KERNEL_NAMES = {"flash": "torch's flash kernel, exact lengths", "sdpa": "SDPA with a mask, contexts rounded up to 256"}


def measure_nano(job: PeerJob, folder: Path, device: torch.device) -> Iterator[PeerRow]:
    """Yield a row for each workload and each kernel for decoding that runs here; `folder` is not needed."""
    deadline = Deadline(job.limit_s)
    for work in job.works:
        operations = _operations(device)
        model = NanoModel(shape_of(work, job.scale), torch.bfloat16, device, operations)
        for kernel in decode_kernels(device, torch.bfloat16):
            yield _measure(work, job.scale, model, kernel, deadline)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _measure(work: Work, scale: Scale, model: NanoModel, kernel: DecodeKernel, deadline: Deadline) -> PeerRow:
    is_offline = work.kind == "offline"
    workload = nano_workload(scale.num_requests, scale.longest) if is_offline else _stream(scale)
    prompts = [[token % model.vocab_size for token in prompt] for prompt in workload.prompts]
    longest = max(map(sum, zip(map(len, prompts), workload.output_lengths, strict=True)))
    max_len = -(-longest // CONTEXT_STEP) * CONTEXT_STEP
    engine = NanoEngine(model, _num_slots(workload, scale, model, max_len), max_len, kernel)
    temperature = NANO_TEMPERATURE if is_offline else 0.0
    row = PeerRow(
        peer="nano",
        version=f"(torch {torch.__version__})",
        settings=_settings(kernel, model, engine.num_slots),
        workload=work.name,
        model=work.model,
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


def _stream(scale: Scale) -> Workload:
    return even_workload(1, *scale.stream_lengths)


def _num_slots(workload: Workload, scale: Scale, model: NanoModel, max_len: int) -> int:
    """Return the number of requests that fit into the memory at once."""
    num_slots = min(scale.max_num_seqs, workload.num_requests)
    if model.device.type != "cuda":
        return num_slots
    slot_bytes = 2 * model.num_layers * max_len * model.num_kv_heads * model.head_dim * model.dtype.itemsize
    return min(num_slots, int(CACHE_SHARE * torch.cuda.mem_get_info(model.device)[0] / slot_bytes))


def _operations(device: torch.device) -> Operations:
    """Compile the element-wise operations for one model's sizes, where a compiler is installed."""
    if device.type != "cuda":
        return Operations()
    torch.compiler.reset()
    operations = Operations.compiled()
    try:
        operations.silu_multiply(torch.ones(2, 16, device=device))
    except Exception as error:  # whatever a compiler that is missing raises
        print(f"nano: torch.compile fails, so operations run as they are: {error}", file=sys.stderr)  # noqa: T201
        return Operations()
    return operations


def _settings(kernel: DecodeKernel, model: NanoModel, num_slots: int) -> str:
    graphs = "CUDA graphs" if model.device.type == "cuda" else "no graphs"
    fused = "not compiled" if model.operations == Operations() else "compiled"
    how = f"{graphs}, element-wise operations {fused}"
    return f"prefill first, {num_slots} slot_mapping, {how}, decoding by {KERNEL_NAMES[kernel]}"

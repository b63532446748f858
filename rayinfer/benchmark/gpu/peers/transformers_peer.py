"""transformers as a system under test: continuous batching and padded batches, and one stream with a static cache."""

import gc
import itertools
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from rayinfer.benchmark.gpu.cases import NANO_TEMPERATURE, Scale, even_workload, nano_workload
from rayinfer.benchmark.gpu.deadline import Deadline
from rayinfer.benchmark.gpu.model_shapes import write_shape
from rayinfer.benchmark.gpu.peers.peer_report import PeerJob, PeerRow
from rayinfer.benchmark.load.workloads import Workload

RUN_LIMIT_S = 120.0
GROUP_SIZE = 128  # requests of a padded batch
NUM_STREAM_RUNS = 2
POLL_S, STOP_S = 0.5, 30.0
NO_END_TOKEN = -1
ATTENTION = "sdpa"
_SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": NANO_TEMPERATURE, "top_k": 0, "top_p": 1.0}


def measure_transformers(job: PeerJob, folder: Path, device: torch.device) -> Iterator[PeerRow]:
    """Yield a row for each case and each method; one that fails leaves the others."""
    deadline = Deadline(job.limit_s)
    for case in job.cases:
        model = load_model(write_shape(job.scale.shape_of(case), folder / case.model), torch.bfloat16, device)
        streams = (_stream_eager, _stream_compiled) if device.type == "cuda" else (_stream_eager,)
        for method in (_continuous_batching, _padded_batches) if case.kind == "offline" else streams:
            row = PeerRow(
                peer="transformers",
                version=transformers.__version__,
                settings="",
                workload=case.name,
                model=case.model,
            )
            try:
                method(row, model, job.scale, deadline)
            except Exception as error:
                row.error = f"{type(error).__name__}: {error}".partition("\n")[0]
            yield row
            _free_memory(device)
        del model
        _free_memory(device)


def load_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """Build a model of transformers with random weights."""
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(folder), dtype=dtype, attn_implementation=ATTENTION
        )
    model.generation_config.eos_token_id = None  # outputs have the requested length
    return model.eval()


def _continuous_batching(row: PeerRow, model: Any, scale: Scale, deadline: Deadline) -> None:
    """Measure the scheduler of transformers; sizes, graphs and asynchronous batching are its own choices."""
    row.settings = (
        "continuous batching, no block sharing, all else as transformers decides for the card and the attention"
    )
    workload = _fitted(nano_workload(scale.num_requests, scale.longest), model)
    with open_batching(model, scale) as manager:
        warm_up = _fitted(even_workload(min(64, scale.num_requests), min(512, scale.longest), 8, seed=9), model)
        run_workload(manager, warm_up, Deadline(min(RUN_LIMIT_S, deadline.remaining_s)))
        started = time.perf_counter()
        row.tokens = run_workload(manager, workload, Deadline(min(RUN_LIMIT_S, deadline.remaining_s)))
        row.seconds = [time.perf_counter() - started]
        row.settings = f"{row.settings}: {_cache_settings(manager, model)}"
    row.is_partial = row.tokens < workload.num_output_tokens


@contextmanager
def open_batching(model: Any, scale: Scale) -> Iterator[Any]:
    """Keep the scheduler of continuous batching running."""
    # Sizes are left to transformers, except on a CPU, where it asks for all of the memory.
    sizes = {"num_blocks": 64, "max_batch_tokens": 64} if scale.is_tiny else {}
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(**_SAMPLED, eos_token_id=NO_END_TOKEN, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(allow_block_sharing=False, **sizes),
    )
    manager.warmup()  # records CUDA graphs where it uses them
    manager.start()
    try:
        yield manager
    finally:
        if manager.is_running():
            manager.stop(block=True, timeout=STOP_S, hard_stop=True)


def run_workload(manager: Any, workload: Workload, deadline: Deadline) -> int:
    """Run a workload and count its tokens; at the deadline stop, and count those of unfinished requests too."""
    waiting = {
        manager.add_request(prompt, max_new_tokens=length)
        for prompt, length in zip(workload.prompts, workload.output_lengths, strict=True)
    }
    num_tokens = 0
    while waiting and deadline.remaining_s > 0:
        result = manager.get_result(timeout=POLL_S)
        if result is not None and result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            waiting.remove(result.request_id)
            num_tokens += len(result.generated_tokens)
        elif result is None and not manager.is_running():
            raise RuntimeError("continuous batching ended early")
    if waiting:
        manager.stop(block=True, timeout=STOP_S, hard_stop=True)
        queue = manager.output_router.output_queue  # `get_result` returns nothing more after a stop
        while not queue.empty():
            num_tokens += len(queue.get_nowait().generated_tokens)
    return num_tokens


def _cache_settings(manager: Any, model: Any) -> str:
    config, names = (
        manager.continuous_batching_config,
        ("use_cuda_graph", "use_async_batching", "max_batch_tokens", "num_blocks"),
    )
    parts = [f"{name} {getattr(config, name, 'unknown')}" for name in names]
    return ", ".join([f"attention {model.config._attn_implementation}", *parts])


def _padded_batches(row: PeerRow, model: Any, scale: Scale, deadline: Deadline) -> None:
    """Measure `generate` with a dynamic cache."""
    row.settings = (
        f"`generate` for batches of {GROUP_SIZE} requests of similar output lengths, prompts padded on the left, SDPA"
    )
    workload = _fitted(nano_workload(scale.num_requests, scale.longest), model)
    requests = sorted(zip(workload.output_lengths, workload.prompts, strict=True))
    groups = [requests[start : start + GROUP_SIZE] for start in range(0, len(requests), GROUP_SIZE)]
    warm_up = [(2, prompt) for _, prompt in groups[-1]]
    generate_padded(model, warm_up, Deadline(RUN_LIMIT_S))
    limit = Deadline(min(RUN_LIMIT_S, deadline.remaining_s))
    started = time.perf_counter()
    for group in groups:
        if limit.remaining_s > 0:
            row.tokens += generate_padded(model, group, limit)
    row.seconds = [time.perf_counter() - started]
    row.is_partial = row.tokens < workload.num_output_tokens


def generate_padded(model: Any, group: list[tuple[int, list[int]]], limit: Deadline) -> int:
    """Run a padded batch; counts only the requested tokens of each output."""
    width = max(len(prompt) for _, prompt in group)
    tokens, mask = (torch.zeros(len(group), width, dtype=torch.long) for _ in range(2))
    for number, (_, prompt) in enumerate(group):
        tokens[number, width - len(prompt) :] = torch.tensor(prompt)
        mask[number, width - len(prompt) :] = 1
    longest = max(length for length, _ in group)
    max_time = max(1.0, limit.remaining_s)
    out = _generate(model, tokens, mask, max_new_tokens=longest, max_time=max_time, **_SAMPLED)
    return sum(min(length, out.shape[1] - width) for length, _ in group)


def _stream_eager(row: PeerRow, model: Any, scale: Scale, deadline: Deadline) -> None:
    row.settings = "`generate` with a static cache, SDPA, not compiled"
    _stream(row, model, scale, deadline, disable_compile=True)


def _stream_compiled(row: PeerRow, model: Any, scale: Scale, deadline: Deadline) -> None:
    row.settings = "`generate` with a static cache, SDPA, compiled with CUDA graphs as transformers does by itself"
    _stream(row, model, scale, deadline, disable_compile=False)


def _stream(row: PeerRow, model: Any, scale: Scale, deadline: Deadline, *, disable_compile: bool) -> None:
    prompt_len, row.tokens = scale.stream_lengths
    for seed in range(1 + NUM_STREAM_RUNS):  # the first one warms up
        prompt = torch.tensor(_fitted(even_workload(1, prompt_len, row.tokens, seed), model).prompts)
        clock = TokenClock()
        _generate(
            model,
            prompt,
            torch.ones_like(prompt),
            streamer=clock,
            max_new_tokens=row.tokens,
            cache_implementation="static",
            disable_compile=disable_compile,
            do_sample=False,
        )
        if len(clock.times) != 1 + row.tokens:
            raise RuntimeError(f"{len(clock.times) - 1} tokens were generated instead of {row.tokens}")
        if seed > 0:
            row.seconds.append(clock.token_seconds)
        if row.seconds and deadline.remaining_s <= 0:
            break


class TokenClock:
    """Streamer of transformers that records the times of the prompt and of each token."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: torch.Tensor) -> None:
        """Record the time."""
        self.times.append(time.perf_counter())

    def end(self) -> None:
        """Do nothing."""

    @property
    def token_seconds(self) -> float:
        """Return the median time between two tokens, without the first token's."""
        return statistics.median(later - earlier for earlier, later in itertools.pairwise(self.times[1:]))


def _generate(
    model: Any, tokens: torch.Tensor, mask: torch.Tensor, *, streamer: TokenClock | None = None, **settings: Any
) -> torch.Tensor:
    config = GenerationConfig(pad_token_id=0, **settings)
    out = model.generate(
        tokens.to(model.device), attention_mask=mask.to(model.device), generation_config=config, streamer=streamer
    )
    return torch.as_tensor(out)


def _fitted(workload: Workload, model: Any) -> Workload:
    """Map token ids into the vocabulary, as the engine's runs do."""
    vocab_size = model.config.vocab_size
    prompts = [[token % vocab_size for token in prompt] for prompt in workload.prompts]
    return Workload(prompts=prompts, output_lengths=workload.output_lengths)


def _free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()

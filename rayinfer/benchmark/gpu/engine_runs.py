"""Timed runs of an engine on a workload, without a server."""

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rayinfer.benchmark.gpu.cases import NANO_TEMPERATURE, even_workload
from rayinfer.benchmark.load.workloads import Workload
from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.engine import Engine
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

TOKEN_MEMORY = 0.85  # of the free memory: measurements need some


class LoadedEngine:
    """Engine and its numbered requests; those of different runs share no cached prefix."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._num_runs = 0
        self._vocab_size = engine.description.vocab_size

    def drain(self) -> int:
        """Step until all requests have finished; returns the number of their tokens."""
        num_tokens = 0
        while self.engine.has_unfinished_requests:
            num_tokens += sum(len(delta.token_ids) for delta in self.engine.step())
        return num_tokens

    def add(self, workload: Workload, *, temperature: float = 0.0) -> list[str]:
        """Submit a workload with the drawn output lengths; returns the request ids."""
        self._num_runs += 1
        names = [f"{self._num_runs}-{number}" for number in range(workload.num_requests)]
        for seed, (name, prompt, length) in enumerate(
            zip(names, workload.prompts, workload.output_lengths, strict=True)
        ):
            params = SamplingParams(temperature=temperature, max_tokens=length, ignore_eos=True, seed=seed)
            self.engine.add_request(
                GenerationRequest(
                    request_id=name,
                    prompt_token_ids=[token_id % self._vocab_size for token_id in prompt],
                    sampling_params=params,
                    cache_salt=str(self._num_runs),
                )
            )
        return names


@contextmanager
def open_engine(folder: Path, **settings: Any) -> Iterator[Engine]:
    """Build an engine with random weights."""
    usual: dict[str, Any] = {"model": str(folder), "load_format": "dummy"}
    if "num_kv_blocks" not in settings:
        usual["memory_fraction"] = TOKEN_MEMORY
    engine = build_engine(engine_config(**{**usual, **settings}), folder)
    try:
        yield engine
    finally:
        engine.exit()


def warm_up(engine: Engine) -> LoadedEngine:
    """Run a few requests, so that all is compiled and captured, for small steps and for the largest."""
    loaded, description = LoadedEngine(engine), engine.description
    for temperature in (0.0, NANO_TEMPERATURE):
        prompt_len = min(1024, description.max_model_len // 2)
        batch = min(description.max_num_seqs, -(-description.max_num_batched_tokens // prompt_len))
        loaded.add(even_workload(batch, prompt_len, 8, seed=9), temperature=temperature)
        loaded.drain()
    return loaded


def offline_seconds(loaded: LoadedEngine, workload: Workload) -> float:
    """Return the seconds for a workload submitted at once; raises RuntimeError for outputs of another length."""
    loaded.add(workload, temperature=NANO_TEMPERATURE)
    started = time.perf_counter()
    num_tokens = loaded.drain()
    seconds = time.perf_counter() - started
    if num_tokens != workload.num_output_tokens:
        raise RuntimeError(f"{num_tokens} tokens were generated instead of {workload.num_output_tokens}")
    return seconds


def token_seconds(loaded: LoadedEngine, workload: Workload) -> list[float]:
    """Return the seconds between one stream's tokens, without the time to the first one."""
    loaded.add(workload)
    times = []
    while loaded.engine.has_unfinished_requests:
        if any(delta.token_ids for delta in loaded.engine.step()):
            times.append(time.perf_counter())
    return [later - earlier for earlier, later in itertools.pairwise(times)]


def interference_seconds(
    loaded: LoadedEngine, *, num_streams: int, prompt_len: int, every_s: float, for_s: float
) -> list[float]:
    """Return the seconds between tokens of decoding streams while long prompts arrive."""
    longest = loaded.engine.description.max_model_len - 64
    prompts = [even_workload(1, prompt_len, 1, seed=number) for number in range(int(for_s / every_s) + 1)]
    steady = set(loaded.add(even_workload(num_streams, 32, longest)))
    last: dict[str, float] = {}
    gaps: list[float] = []
    started = time.perf_counter()
    due_s = every_s
    while (now := time.perf_counter()) - started < for_s or len(gaps) < num_streams:
        if now - started >= due_s:
            if prompts:
                loaded.add(prompts.pop())
            due_s += every_s
        for delta in loaded.engine.step():
            if delta.request_id in steady and delta.token_ids:
                came = time.perf_counter()
                if delta.request_id in last:
                    gaps.append(came - last[delta.request_id])
                last[delta.request_id] = came
    for request_id in steady:
        loaded.engine.abort(request_id)
    loaded.drain()
    return gaps

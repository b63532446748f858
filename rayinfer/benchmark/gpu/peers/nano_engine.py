"""Minimal engine in the manner of nano-vllm: prefill first, then decode all with CUDA graphs, a slot a request."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from rayinfer.benchmark.gpu.deadline import Deadline
from rayinfer.benchmark.gpu.peers.nano_attention import DecodeKernel, flash_decode, prompt_attention, sdpa_decode
from rayinfer.benchmark.gpu.peers.nano_model import NanoModel

STEP_TOKENS = 16_384  # of prompts in one step
CONTEXT_STEP = 256  # contexts that SDPA reads are rounded up to it


@dataclass(slots=True)
class NanoRun:
    """Outputs of one run, up to its end or its deadline."""

    outputs: list[list[int]]
    step_ends: list[float] = field(default_factory=list)  # seconds of a clock
    seconds: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Return the number of tokens of all outputs."""
        return sum(map(len, self.outputs))


@dataclass(frozen=True, slots=True)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    logits: torch.Tensor


class NanoEngine:
    """Minimal engine; requests occupy the first slots without gaps, so that a batch is a slice of the cache."""

    def __init__(self, model: NanoModel, num_slots: int, max_len: int, kernel: DecodeKernel) -> None:
        self._model, self._kernel, self._max_len = model, kernel, max_len
        self.num_slots, device = num_slots, model.device
        self._batch_sizes = sorted({min(size, num_slots) for size in (1, 2, 4, 8, *range(16, num_slots + 16, 16))})
        shape = (model.num_layers, 2, num_slots, max_len, model.num_kv_heads, model.head_dim)
        self._cache = torch.zeros(shape, dtype=model.dtype, device=device)
        self._tokens, self._positions = (torch.zeros(num_slots, dtype=torch.long, device=device) for _ in range(2))
        self._first_rows = torch.arange(num_slots, device=device) * max_len
        self._graphs: dict[tuple[int, int], _Recorded] = {}
        self._running: list[int] = []  # the request of each slot
        self._contexts: list[int] = []  # tokens of each slot, the one that is computed next included

    @torch.no_grad()
    def run(
        self, prompts: Sequence[Sequence[int]], lengths: Sequence[int], temperature: float, deadline: Deadline
    ) -> NanoRun:
        """Generate the requested tokens of every prompt, or as many as the deadline allows."""
        run = NanoRun([[] for _ in prompts])
        waiting = deque(range(len(prompts)))
        self._running, self._contexts = [], []
        self._positions.zero_()
        started = time.perf_counter()
        while (waiting or self._running) and deadline.remaining_s > 0:
            if waiting and len(self._running) < self.num_slots:
                first, logits = len(self._running), self._prefill(waiting, prompts)
            else:
                first, logits = 0, self._decode()
            self._take_tokens(run, first, logits, temperature)
            self._release_finished(run, lengths)
            run.step_ends.append(time.perf_counter())
        run.seconds = time.perf_counter() - started
        return run

    def _take_tokens(self, run: NanoRun, first: int, logits: torch.Tensor, temperature: float) -> None:
        """Sample, and read the tokens on the host, as a loop does that checks for the end of an output."""
        tokens = self._model.operations.sample(logits, temperature) if temperature > 0 else logits.argmax(dim=-1)
        self._tokens[first : first + len(tokens)] = tokens
        for request, token in zip(self._running[first:], tokens.tolist(), strict=True):
            run.outputs[request].append(token)

    def _release_finished(self, run: NanoRun, lengths: Sequence[int]) -> None:
        """Move the last slot's request into each slot that becomes free."""
        for slot in reversed(range(len(self._running))):
            if len(run.outputs[self._running[slot]]) < lengths[self._running[slot]]:
                continue
            request, context = self._running.pop(), self._contexts.pop()
            last = len(self._running)
            if slot != last:
                self._running[slot], self._contexts[slot] = request, context
                self._cache[:, :, slot, :context] = self._cache[:, :, last, :context]
                for state in (self._tokens, self._positions):
                    state[slot] = state[last]
            self._positions[last] = 0  # padding rows read one token

    def _prefill(self, waiting: deque[int], prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        first = len(self._running)
        batch: list[Sequence[int]] = []
        while waiting and first + len(batch) < self.num_slots:
            prompt = prompts[waiting[0]]
            if batch and sum(map(len, batch)) + len(prompt) > STEP_TOKENS:
                break
            self._running.append(waiting.popleft())
            self._contexts.append(len(prompt) + 1)
            batch.append(prompt)
        lengths, device = [len(prompt) for prompt in batch], self._model.device
        positions = torch.cat([torch.arange(length) for length in lengths]).to(device)
        rows = [torch.arange(length) + slot * self._max_len for slot, length in enumerate(lengths, start=first)]
        cache_rows = torch.cat(rows).to(device)

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            self._write(layer, cache_rows, keys, values)
            return prompt_attention(queries, keys, values, lengths)

        tokens = torch.tensor([token for prompt in batch for token in prompt], device=device)
        hidden = self._model.forward(tokens, positions, attend)
        ends = torch.tensor(lengths, device=device)
        self._positions[first : first + len(batch)] = ends
        return self._model.logits(hidden[ends.cumsum(0) - 1])

    def _decode(self) -> torch.Tensor:
        batch, longest = len(self._running), max(self._contexts)
        size = next(size for size in self._batch_sizes if size >= batch)
        is_bounded = self._kernel == "sdpa"
        context = min(self._max_len, -(-longest // CONTEXT_STEP) * CONTEXT_STEP) if is_bounded else self._max_len
        if self._model.device.type == "cuda":
            recorded = self._graphs.get((size, context)) or self._record(size, context)
            recorded.graph.replay()
            logits = recorded.logits
        else:
            logits = self._decode_step(size, context)
        self._positions[:batch] += 1
        self._contexts = [length + 1 for length in self._contexts]
        return logits[:batch]

    def _record(self, size: int, context: int) -> _Recorded:
        """Record a step for a batch of `size`; what it writes first, the replay writes again."""
        self._decode_step(size, context)
        torch.cuda.synchronize(self._model.device)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self._graphs.values())).graph.pool() if self._graphs else None
        with torch.cuda.graph(graph, pool=pool):
            logits = self._decode_step(size, context)
        self._graphs[size, context] = _Recorded(graph, logits)
        return self._graphs[size, context]

    def _decode_step(self, size: int, context: int) -> torch.Tensor:
        positions = self._positions[:size]
        cache_rows = self._first_rows[:size] + positions

        def attend(layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            self._write(layer, cache_rows, keys, values)
            cached_keys, cached_values = self._cache[layer]
            if self._kernel == "flash":
                return flash_decode(queries, cached_keys, cached_values, positions)
            return sdpa_decode(queries, cached_keys, cached_values, positions, context)

        return self._model.logits(self._model.forward(self._tokens[:size], positions, attend))

    def _write(self, layer: int, rows: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        for cache, new in zip(self._cache[layer], (keys, values), strict=True):
            cache.flatten(0, 1).index_copy_(0, rows, new)

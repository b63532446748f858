"""Usage of the generations in flight, and each one's part of the engines' time."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rayinfer.access.usage import Usage
from rayinfer.outputs import RequestOutput
from rayinfer.protocols import TextGenerator


class EngineLoad(NamedTuple):
    """Engines of a model, and the requests that they run for all routers."""

    num_engines: int
    num_running: int


def engine_load(generator: TextGenerator) -> EngineLoad:
    """Return the load of a model's engines."""
    engines = generator.status().engines.values()
    return EngineLoad(max(1, len(engines)), sum(engine.num_running for engine in engines))


class EngineClock:
    """Clock of one model that advances by each running generation's part of the engines' time.

    A busy engine's time is shared equally by the generations in flight, so that all parts add up to it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.load = EngineLoad(1, 0)  # as it was last reported
        self.num_running = 0  # of this router
        self._clock = clock
        self._read_s = clock()
        self._time_s = 0.0

    def read(self) -> float:
        """Return the time now."""
        now = self._clock()
        num_running = max(self.num_running, self.load.num_running)
        if self.num_running:
            self._time_s += (now - self._read_s) * min(1.0, self.load.num_engines / num_running)
        self._read_s = now
        return self._time_s


class GenerationUsage:
    """Tokens of one generation of one or several prompts, counted as they come."""

    __slots__ = (
        "_begun_s",
        "_clock",
        "_prompts",
        "_reported",
        "_without_output",
        "cached_tokens",
        "finish_reasons",
        "first_output_s",
        "key_id",
        "model",
        "output_tokens",
        "prompt_tokens",
    )

    def __init__(self, key_id: str, model: str, prompts: Sequence[Sequence[int]], clock: EngineClock) -> None:
        self.key_id = key_id
        self.model = model
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.first_output_s: float | None = None  # since 1970
        self.finish_reasons: dict[tuple[int, int], str] = {}  # by prompt and choice
        self._prompts = prompts
        self._without_output = set(range(len(prompts)))
        self._clock = clock
        self._begun_s = clock.read()
        self._reported = Usage()
        clock.num_running += 1

    def add(self, prompt: int, output: RequestOutput) -> None:
        """Count an output of one of the prompts."""
        for completion in output.outputs:
            self.output_tokens += len(completion.token_ids)
            if completion.finish_reason is not None:
                self.finish_reasons[prompt, completion.index] = completion.finish_reason
        if self._without_output and prompt in self._without_output:
            self._without_output.discard(prompt)
            self.prompt_tokens += len(self._prompts[prompt])
            self.cached_tokens += output.num_cached_tokens
            if self.first_output_s is None:
                self.first_output_s = time.time()

    def take_new(self) -> Usage:
        """Return what came since the last call; the request itself counts with the first."""
        engine_s = self._clock.read() - self._begun_s
        total = Usage(1, self.prompt_tokens, self.cached_tokens, self.output_tokens, engine_s)
        new, self._reported = total.minus(self._reported), total
        return new

    def end(self) -> Usage:
        """Return the rest; the generation runs no longer."""
        rest = self.take_new()
        self._clock.num_running -= 1
        return rest

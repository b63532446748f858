"""Comparison of a plan's times with those of an engine in this process."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rayinfer.benchmark.load.workloads import FIRST_TOKEN_ID
from rayinfer.benchmark.report import Table
from rayinfer.llm import LLM
from rayinfer.planning.capacity_plan import CapacityPlan
from rayinfer.sampling_params import SamplingParams

REPEAT = 5
NUM_STEPS = 24
BATCHES = (1, 8, 32)
HEADS = ("", "estimated, ms", "measured, ms", "error, %")


@dataclass(frozen=True, slots=True)
class ComparedTime:
    """One time of a plan, and the median of those measured."""

    name: str
    estimated_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Return how far the estimate is above what was measured, as a share of that."""
        return self.estimated_s / self.measured_s - 1


def comparison_table(times: list[ComparedTime], title: str) -> Table:
    """Return the times side by side."""
    rows = [(each.name, 1000 * each.estimated_s, 1000 * each.measured_s, f"{100 * each.error:+.0f}") for each in times]
    return Table(title, HEADS, rows)


def compare_with_engine(
    plan: CapacityPlan, model: str, settings: dict[str, Any], log: Callable[[str], None]
) -> list[ComparedTime]:
    """Build an engine, and measure prefill and decoding steps of the plan's lengths; medians of a few runs."""
    prompt_len = plan.objectives.prompt_len
    chance = random.Random(0)

    def prompts(count: int) -> list[list[int]]:
        highest = plan.model.vocab_size - 1
        return [[chance.randint(FIRST_TOKEN_ID, highest) for _ in range(prompt_len)] for _ in range(count)]

    with LLM(model, enable_prefix_caching=False, **settings) as llm:
        _step_times(llm, prompts(1))  # caches and threads are warm then
        log("prefill")
        measured = statistics.median(_prefill_s(llm, prompts(1)[0]) for _ in range(REPEAT))
        found = [ComparedTime(f"prefill of {prompt_len:,} tokens", plan.prefill_s, measured)]
        for batch in sorted({min(each, plan.max_num_seqs) for each in BATCHES}):
            log(f"decoding steps of {batch}")
            estimated = plan.times.decode_step_s(batch, prompt_len + NUM_STEPS / 2)
            found.append(ComparedTime(f"decoding step of {batch}", estimated, _step_times(llm, prompts(batch))))
    return found


def _prefill_s(llm: LLM, prompt: list[int]) -> float:
    started = time.perf_counter()
    llm.generate([prompt], SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True), use_tqdm=False)
    return time.perf_counter() - started


def _step_times(llm: LLM, prompts: list[list[int]]) -> float:
    """Return the median time of the steps after every prompt has its first tokens."""
    most = 2 * NUM_STEPS + len(prompts) * (1 + len(prompts[0]) // 128)  # the first one outlives the others' prefill
    asked = SamplingParams(temperature=0.0, max_tokens=most, ignore_eos=True)
    waiting = {llm.add_request(prompt, asked) for prompt in prompts}
    ids = list(waiting)
    seconds: list[float] = []
    while len(seconds) <= NUM_STEPS and llm.has_unfinished_requests():
        is_decoding, started = not waiting, time.perf_counter()
        # Requests whose token ends within a character have no output in its step.
        waiting.difference_update(each.request_id for each in llm.step())
        if is_decoding:
            seconds.append(time.perf_counter() - started)
    for request_id in ids:
        llm.abort(request_id)
    return statistics.median(seconds[1:])

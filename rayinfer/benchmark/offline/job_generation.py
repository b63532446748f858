"""Rate of a generation job beside `LLM.generate` with the same engine, prompts and seeds; loading is not measured.

Both have one thread of computation, so that processor time, which other programs hardly change, stands for work.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rayinfer.benchmark.predictors.passages import passages
from rayinfer.benchmark.report import Table
from rayinfer.errors import RayinferError
from rayinfer.jobs.batch_job import batch_job, configure_batch_job
from rayinfer.jobs.events import FINISHED, READY
from rayinfer.jobs.seeds import row_seed
from rayinfer.llm import LLM

NUM_THREADS = 1
SAMPLING: dict[str, Any] = {"temperature": 0.8, "max_tokens": 16, "ignore_eos": True}
Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RunTime:
    """Time of one run."""

    seconds: float
    cpu_s: float  # processor time of the process


@dataclass(frozen=True, kw_only=True, slots=True)
class JobGenerationReport:
    """Times of both, round by round."""

    model: str
    num_prompts: int
    job: list[RunTime]
    generate: list[RunTime]
    share: float  # of the rows per second of processor time of `LLM.generate`, medians

    def tables(self) -> list[Table]:
        """Return all figures."""
        rows: list[tuple[str, object]] = [
            ("prompts", self.num_prompts),
            ("job, s of processor time (median)", _median_cpu_s(self.job)),
            ("LLM.generate, s of processor time", _median_cpu_s(self.generate)),
            ("job, s", statistics.median(run.seconds for run in self.job)),
            ("LLM.generate, s", statistics.median(run.seconds for run in self.generate)),
            ("share of the rate of LLM.generate, by processor time", self.share),
        ]
        return [Table(f"{self.model}, real text, 16 tokens each at temperature 0.8, equal texts", ("", "figure"), rows)]


def measure_job_generation(model: str, num_prompts: int, num_rounds: int, log: Log) -> JobGenerationReport:
    """Take turns with a new engine each time; raises RayinferError where the texts differ."""
    prompts = passages(num_prompts)
    job: list[RunTime] = []
    generate: list[RunTime] = []
    for number in range(num_rounds):
        log(f"round {number + 1} of {num_rounds}: LLM.generate")
        expected = _generate(model, prompts, generate)
        log(f"round {number + 1} of {num_rounds}: job")
        if _run_job(model, prompts, job) != expected:
            raise RayinferError("the job and LLM.generate gave different texts for the same seeds")
    share = _median_cpu_s(generate) / _median_cpu_s(job)
    return JobGenerationReport(model=model, num_prompts=num_prompts, job=job, generate=generate, share=share)


def _generate(model: str, prompts: list[str], runs: list[RunTime]) -> list[str]:
    with LLM(model, num_threads=NUM_THREADS) as llm:
        defaults = llm.get_default_sampling_params()
        params = [replace(defaults, **SAMPLING, seed=row_seed(0, str(number))) for number in range(len(prompts))]
        begin = _now()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        runs.append(_since(begin))
        return [output.outputs[0].text for output in outputs]


def _run_job(model: str, prompts: list[str], runs: list[RunTime]) -> list[str]:
    times: list[RunTime] = []
    with tempfile.TemporaryDirectory() as folder:
        job_input, output = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        job_input.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        inference = configure_batch_job(
            batch_job(
                input=str(job_input),
                output=str(output),
                model=model,
                sampling=SAMPLING,
                engine={"num_threads": NUM_THREADS},
            )
        )
        for event in (READY, FINISHED):
            inference.events.subscribe(event, lambda _: times.append(_now()))
        inference.infer()
        begin, end = times
        runs.append(RunTime(end.seconds - begin.seconds, end.cpu_s - begin.cpu_s))
        return [json.loads(line)["text"] for line in output.read_text().splitlines()]


def _now() -> RunTime:
    return RunTime(time.perf_counter(), time.process_time())


def _since(begin: RunTime) -> RunTime:
    now = _now()
    return RunTime(now.seconds - begin.seconds, now.cpu_s - begin.cpu_s)


def _median_cpu_s(runs: list[RunTime]) -> float:
    return statistics.median(run.cpu_s for run in runs)

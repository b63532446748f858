"""Rate of a generation job beside `LLM.generate` with the same engine, prompts and seeds; loading is not measured."""

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

SAMPLING: dict[str, Any] = {"temperature": 0.8, "max_tokens": 16, "ignore_eos": True}
Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobGenerationReport:
    """Times of both, round by round."""

    model: str
    num_prompts: int
    job_s: list[float]
    generate_s: list[float]
    share: float  # of the rate of `LLM.generate`, medians

    def tables(self) -> list[Table]:
        """Return all figures."""
        rows: list[tuple[str, object]] = [
            ("prompts", self.num_prompts),
            ("job, s (median)", statistics.median(self.job_s)),
            ("LLM.generate, s (median)", statistics.median(self.generate_s)),
            ("share of the rate of LLM.generate", self.share),
        ]
        return [Table(f"{self.model}, real text, 16 tokens each at temperature 0.8, equal texts", ("", "figure"), rows)]


def measure_job_generation(model: str, num_prompts: int, num_rounds: int, log: Log) -> JobGenerationReport:
    """Take turns with a new engine each time; raises RayinferError where the texts differ."""
    prompts = passages(num_prompts)
    job_s: list[float] = []
    generate_s: list[float] = []
    for number in range(num_rounds):
        log(f"round {number + 1} of {num_rounds}: LLM.generate")
        seconds, expected = _generate(model, prompts)
        generate_s.append(seconds)
        log(f"round {number + 1} of {num_rounds}: job")
        seconds, texts = _run_job(model, prompts)
        job_s.append(seconds)
        if texts != expected:
            raise RayinferError("the job and LLM.generate gave different texts for the same seeds")
    share = statistics.median(generate_s) / statistics.median(job_s)
    return JobGenerationReport(model=model, num_prompts=num_prompts, job_s=job_s, generate_s=generate_s, share=share)


def _generate(model: str, prompts: list[str]) -> tuple[float, list[str]]:
    with LLM(model) as llm:
        defaults = llm.get_default_sampling_params()
        params = [replace(defaults, **SAMPLING, seed=row_seed(0, str(number))) for number in range(len(prompts))]
        begin = time.perf_counter()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - begin, [output.outputs[0].text for output in outputs]


def _run_job(model: str, prompts: list[str]) -> tuple[float, list[str]]:
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        job_input, output = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        job_input.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        inference = configure_batch_job(
            batch_job(input=str(job_input), output=str(output), model=model, sampling=SAMPLING)
        )
        for event in (READY, FINISHED):
            inference.events.subscribe(event, lambda _: times.append(time.perf_counter()))
        inference.infer()
        texts = [json.loads(line)["text"] for line in output.read_text().splitlines()]
    return times[1] - times[0], texts

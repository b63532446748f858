"""Costs of an offline job together: loop, memory, resumption, and rate beside `LLM.generate`."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rayinfer.benchmark.offline.job_generation import JobGenerationReport, measure_job_generation
from rayinfer.benchmark.offline.job_loop import JobLoopReport, measure_job_loop
from rayinfer.benchmark.offline.job_resume import JobResumeReport, measure_job_resume
from rayinfer.benchmark.report import Environment, Table, describe_environment


@dataclass(frozen=True, kw_only=True, slots=True)
class JobCostsReport:
    """Result of all parts."""

    command: str
    loop: JobLoopReport
    resumption: JobResumeReport
    generation: JobGenerationReport
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the figures of all parts."""
        return [*self.loop.tables(), *self.resumption.tables(), *self.generation.tables()]


def measure_job_costs(
    num_rows: int,
    resume_rows: int,
    model: str,
    *,
    num_prompts: int,
    num_rounds: int,
    command: str,
    log: Callable[[str], None],
) -> JobCostsReport:
    """Measure one part after the other, memory first."""
    log("loop beside an engine in virtual time")
    loop = measure_job_loop(num_rows)
    log("resumption")
    resumption = measure_job_resume(resume_rows)
    generation = measure_job_generation(model, num_prompts, num_rounds, log)
    return JobCostsReport(command=command, loop=loop, resumption=resumption, generation=generation)

"""The engine itself as a participant, measured by the code of the GPU benchmark."""

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.estimates import estimates
from rayinfer.benchmark.gpu.measuring import Measuring
from rayinfer.benchmark.gpu.peers.peer_rows import OWN, PeerJob, PeerRow
from rayinfer.benchmark.gpu.results import new_row
from rayinfer.benchmark.gpu.time_budget import Deadline, Timetable

NUM_RUNS = 2


def measure_own(job: PeerJob, folder: Path, device: torch.device) -> Iterator[PeerRow]:
    """Yield a row for each workload."""
    scale = replace(job.scale, num_runs=min(NUM_RUNS, job.scale.num_runs))
    timetable = Timetable(Deadline(job.limit_s), estimates(job.works, scale, job.limits, 1))
    measuring = Measuring(job.limits, scale, folder, device)
    for work in job.works:
        measured = new_row(work)
        measuring.measure(work, measured, timetable.begin(work.name))
        yield PeerRow(
            peer=OWN,
            version=_version(),
            settings="the settings of `rayinfer.benchmark.gpu`",
            workload=work.name,
            model=work.model,
            seconds=measured.seconds,
        )


def _version() -> str:
    try:
        return version("rayinfer")
    except PackageNotFoundError:  # run from a checkout
        return ""

"""One participant's run: every workload of its job, with each row written as soon as it is measured."""

import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.peers.nano_runs import measure_nano
from rayinfer.benchmark.gpu.peers.own_runs import measure_own
from rayinfer.benchmark.gpu.peers.peer_rows import OWN, PeerJob, PeerRow, write_rows
from rayinfer.benchmark.gpu.peers.transformers_runs import measure_transformers

Measure = Callable[[PeerJob, Path, torch.device], Iterator[PeerRow]]
MEASURES: Mapping[str, Measure] = {OWN: measure_own, "nano": measure_nano, "transformers": measure_transformers}


def run_participant(job: PeerJob, output: Path) -> None:
    """Run a job; an error ends it and is the last row."""
    rows: list[PeerRow] = []
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        try:
            for row in MEASURES[job.participant](job, Path(folder), device):
                rows.append(row)
                write_rows(rows, output)
        except Exception as error:  # the rows so far are worth keeping
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            rows.append(failed_row(job.participant, reason))
            write_rows(rows, output)


def failed_row(participant: str, reason: str) -> PeerRow:
    """Make the row of a participant that ended early."""
    return PeerRow(peer=participant, version="", settings="", workload="", model="", error=reason)


if __name__ == "__main__":
    run_participant(PeerJob.read(Path(sys.argv[1])), Path(sys.argv[2]))

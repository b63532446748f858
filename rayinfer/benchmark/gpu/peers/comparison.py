"""The comparison: each participant in a process of its own, one after the other, and the table of their rates."""

import gc
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.cases import nano_workload
from rayinfer.benchmark.gpu.estimates import floor_of
from rayinfer.benchmark.gpu.limits import describe_card, measure_limits
from rayinfer.benchmark.gpu.peers.participant import failed_row, run_participant
from rayinfer.benchmark.gpu.peers.peer_rows import OWN, PEER_WORKS, PEERS, PeerJob, PeerReport, PeerRow, read_rows
from rayinfer.benchmark.gpu.peers.peer_tables import peer_lines
from rayinfer.benchmark.gpu.time_budget import Deadline
from rayinfer.benchmark.load.report import write_json
from rayinfer.errors import ConfigError

NAME = "gpu-peers"
START_S = 10.0  # Python and torch, before the clock can be looked at
LEAST_S = 20.0  # a participant is not started for less


def compare_peers(
    output: Path,
    say: Callable[[str], None],
    *,
    only: Collection[str] = (),
    work_names: Collection[str] = (),
    limit_s: float = 570.0,
    is_dry_run: bool = False,
    command: str = "python -m rayinfer.benchmark.gpu.peers",
) -> PeerReport:
    """Run the engine and then the peers; gpu-peers.json and .md in `output` grow with every participant.

    A dry run takes tiny shapes in this process. Raises ConfigError for an unknown name, or where there is no GPU.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if device.type == "cpu" and not is_dry_run:
        raise ConfigError("there is no GPU here: --dry-run takes tiny shapes and says nothing about a GPU")
    peers = _chosen(only, PEERS, "peer")
    works = _chosen(work_names, PEER_WORKS, "workload")
    deadline = Deadline(limit_s - START_S)
    limits = measure_limits(device, tiny=is_dry_run)
    if device.type == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    report = PeerReport(
        card=describe_card(device),
        is_dry_run=is_dry_run,
        copy_bytes_per_s=limits.copy_bytes_per_s,
        matmul_flops_per_s=limits.matmul_flops_per_s,
    )
    whole = PeerJob(participant=OWN, work_names=works, limits=limits, limit_s=0.0, is_tiny=is_dry_run)
    for participant in (OWN, *peers):
        started_s = deadline.elapsed_s
        job = replace(whole, participant=participant, limit_s=deadline.remaining_s)
        rows = _run(job)
        for row in rows:
            _set_beside_floor(row, job)
        report.rows += rows
        report.took_s = START_S + deadline.elapsed_s
        say(f"{participant}: {len(rows)} rows ({deadline.elapsed_s - started_s:.0f} s)")
        write_json(report, output / f"{NAME}.json")
        (output / f"{NAME}.md").write_text("\n".join([*peer_lines(report), "", f"`{command}`", ""]))
    for line in peer_lines(report):
        say(line)
    return report


def _chosen(names: Collection[str], known: Sequence[str], kind: str) -> list[str]:
    if unknown := sorted(set(names) - set(known)):
        raise ConfigError(f"there is no {kind} {', '.join(unknown)}: choose from {', '.join(known)}")
    return [name for name in known if not names or name in names]


def _run(job: PeerJob) -> list[PeerRow]:
    """Run a participant: in this process if its shapes are tiny, else in one that gives all of its memory back."""
    if not job.is_tiny and job.limit_s < LEAST_S:
        return [failed_row(job.participant, f"left out: {max(0.0, job.limit_s):.0f} s were left")]
    with tempfile.TemporaryDirectory() as folder:
        job_path, rows_path = Path(folder) / "job.json", Path(folder) / "rows.json"
        if job.is_tiny:
            run_participant(job, rows_path)
            return read_rows(rows_path)
        job.write(job_path)
        started = time.monotonic()
        command = [sys.executable, "-m", "rayinfer.benchmark.gpu.peers.participant", str(job_path), str(rows_path)]
        try:
            status = subprocess.run(command, timeout=job.limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            reason = f"stopped after {time.monotonic() - started:.0f} s"
            return [*read_rows(rows_path), failed_row(job.participant, reason)]
        failed = [failed_row(job.participant, f"exit status {status}")] if status else []
        return [*read_rows(rows_path), *failed]


def _set_beside_floor(row: PeerRow, job: PeerJob) -> None:
    """Compute the rate of a row and its share of the rate at the floor."""
    work = next((work for work in job.works if work.name == row.workload), None)
    if work is None or not row.seconds:
        return
    floor, seconds = floor_of(work, job.scale, job.limits), statistics.median(row.seconds)
    if work.kind == "stream":
        prompt_len, output_len = job.scale.stream_lengths
        row.tokens = row.tokens or output_len
        row.tokens_per_s = 1 / seconds
        row.share = floor.decode_step_s([prompt_len + output_len // 2]) / seconds
        return
    workload = nano_workload(job.scale.num_requests, job.scale.longest)
    row.tokens = row.tokens or workload.num_output_tokens
    row.tokens_per_s = row.tokens / seconds
    floor_s = floor.offline_s([len(prompt) for prompt in workload.prompts], workload.output_lengths)
    row.share = row.tokens_per_s * floor_s / workload.num_output_tokens

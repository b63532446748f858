"""The comparison: each system in a process of its own, one after the other, with its rows as they are measured."""

import gc
import multiprocessing
import tempfile
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path

import torch

from rayinfer.benchmark.gpu.deadline import Deadline
from rayinfer.benchmark.gpu.gpu_report import new_row
from rayinfer.benchmark.gpu.measurement import Measurement
from rayinfer.benchmark.gpu.peers.nano_peer import measure_nano
from rayinfer.benchmark.gpu.peers.peer_report import OWN, PEER_CASES, PEERS, PeerJob, PeerReport, PeerRow, failed_row
from rayinfer.benchmark.gpu.peers.transformers_peer import measure_transformers
from rayinfer.benchmark.gpu.suite import check_names, find_device
from rayinfer.benchmark.gpu.timing import describe_card, measure_limits

NAME = "gpu-peers"
LEAST_S = 20.0  # a system is not started for less
OWN_RUNS = 2


def compare_peers(
    output: Path,
    log: Callable[[str], None],
    *,
    only: Collection[str] = (),
    case_names: Collection[str] = (),
    limit_s: float = 570.0,
    is_dry_run: bool = False,
    command: str = "python -m rayinfer.benchmark.gpu.peers",
) -> PeerReport:
    """Run the engine and then the peers; gpu-peers.json and .md in `output` grow with every system.

    A dry run takes tiny shapes in this process. Raises ConfigError for an unknown name, or where there is no GPU.
    """
    device = find_device(is_dry_run=is_dry_run)
    check_names(only, PEERS, "peer")
    check_names(case_names, PEER_CASES, "workload")
    deadline = Deadline(limit_s)
    limits = measure_limits(device, tiny=is_dry_run)
    _free_memory(device)
    report = PeerReport(
        card=describe_card(device),
        is_dry_run=is_dry_run,
        copy_bytes_per_s=limits.copy_bytes_per_s,
        matmul_flops_per_s=limits.matmul_flops_per_s,
        command=command,
    )
    cases = [name for name in PEER_CASES if not case_names or name in case_names]
    job = PeerJob(system=OWN, case_names=cases, limits=limits, limit_s=limit_s, is_tiny=is_dry_run)
    for system in (OWN, *(peer for peer in PEERS if not only or peer in only)):
        job, started_s = replace(job, system=system, limit_s=deadline.remaining_s), deadline.elapsed_s
        rows = list(measure_system(job)) if is_dry_run else measure_in_own_process(job)
        for row in rows:
            row.compare(job)
        report.rows += rows
        report.took_s = deadline.elapsed_s
        log(f"{system}: {len(rows)} rows ({deadline.elapsed_s - started_s:.0f} s)")
        report.write(output, NAME)
    log("\n".join([*report.table().lines(), *report.notes()]))
    return report


def measure_system(job: PeerJob) -> Iterator[PeerRow]:
    """Yield each row as it is measured; an error ends the job and is its last row."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as folder:
        try:
            yield from MEASURES[job.system](job, Path(folder), device)
        except Exception as error:  # the rows so far are worth keeping
            traceback.print_exc()
            yield failed_row(job.system, f"{type(error).__name__}: {error}".partition("\n")[0])


def measure_in_own_process(job: PeerJob) -> list[PeerRow]:
    """Run a job in a process that releases all of its memory, and is killed at the deadline."""
    if job.limit_s < LEAST_S:
        return [failed_row(job.system, f"left out: {max(0.0, job.limit_s):.0f} s were left")]
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_rows, args=(job, sender))
    rows, deadline = [], Deadline(job.limit_s)
    process.start()
    sender.close()
    try:
        while receiver.poll(max(0.0, deadline.remaining_s)):
            rows.append(receiver.recv())
        rows.append(failed_row(job.system, f"stopped after {deadline.elapsed_s:.0f} s"))
    except EOFError:  # it has ended
        process.join()
        if process.exitcode:
            rows.append(failed_row(job.system, f"exit status {process.exitcode}"))
    finally:
        process.kill()
        process.join()
    return rows


def _send_rows(job: PeerJob, sender: Connection) -> None:
    for row in measure_system(job):
        sender.send(row)


def measure_own(job: PeerJob, folder: Path, device: torch.device) -> Iterator[PeerRow]:
    """Yield the rows of our engine, measured as in the GPU benchmark."""
    try:
        own_version = version("rayinfer")
    except PackageNotFoundError:  # run from a checkout
        own_version = ""
    scale = replace(job.scale, num_runs=min(OWN_RUNS, job.scale.num_runs))
    measurement = Measurement(job.limits, scale, folder, device, Deadline(job.limit_s))
    for case in job.cases:
        measured = new_row(case)
        measurement.measure(case, measured)
        yield PeerRow(
            peer=OWN,
            version=own_version,
            settings="the settings of `rayinfer.benchmark.gpu`",
            workload=case.name,
            model=case.model,
            seconds=measured.seconds,
        )


def _free_memory(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


Measure = Callable[[PeerJob, Path, torch.device], Iterator[PeerRow]]
MEASURES: Mapping[str, Measure] = {OWN: measure_own, "nano": measure_nano, "transformers": measure_transformers}

"""Steps shared by fault tests: load on a service, fault injection, and the recovery check."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

from support.faults.fault_load import KINDS, Answer, Load
from support.faults.fault_report import FaultReport, FaultRow
from support.faults.faulty_service import FaultyService, Remains, kill
from support.services.polling import wait_until

AGAIN_S = 240.0  # a new engine reads its model on a busy machine
CLEAN_S = 10.0  # what is left after so long is leaked
AT_TOKEN = 10
PROMPT_TOKENS = 12  # about as many as the prompts of the load have


@contextlib.contextmanager
def under_load(
    service: FaultyService, expected: dict[int | None, Answer], row: FaultRow, **settings: Any
) -> Iterator[Load]:
    """Have a load on the service that has got going; its counts are in the row afterwards."""
    model = service.host.model
    usual = {"num_streams": model.num_streams, "whole_per_s": model.whole_per_s}
    with Load(service.url, expected, **(usual | settings)) as load:
        wait_until(lambda: load.streams_in_flight(AT_TOKEN) > 0)
        yield load
    row.count(load.verdicts())
    row.gap_s = load.longest_gap_s
    if load.struck_gap_s is not None:  # the other pauses are those of a machine that starts an engine meanwhile
        row.gap_s, row.note = load.struck_gap_s, f"{load.longest_gap_s:.2f} s at most until all was whole again"
    row.first_failure = load.first_failure()


def prefill_time(service: FaultyService) -> float:
    """Time a prompt of as many tokens as half of the load's streams have at most, on an engine with nothing to do."""
    model = service.host.model
    num_choices = sum(kind.get("n", 1) for kind in KINDS) / len(KINDS)  # each has tokens of its own
    num_tokens = int(model.num_streams / 2 * num_choices * (model.num_tokens + PROMPT_TOKENS))
    times_s = []
    for first in (3, 4):  # the second time everything has been used once
        started = time.monotonic()
        prompt = [first, *(10 + i % 300 for i in range(num_tokens))]
        assert service.complete(prompt, max_tokens=1).status_code == 200
        times_s.append(time.monotonic() - started)
    return times_s[-1]


def wait_until_whole(service: FaultyService, lost_pids: list[int] | None = None) -> float:
    """Wait until these engines are gone and others have taken their places; returns how long it took."""
    gone = set(lost_pids or ())

    def is_whole_again() -> bool:
        alive = set(service.pids("engine"))
        return not gone & alive and len(alive) == service.num_engine_processes and service.is_complete()

    return wait_until(is_whole_again, AGAIN_S)


def kill_again_and_again(
    service: FaultyService,
    expected: dict[int | None, Answer],
    row: FaultRow,
    draw_pause_s: Callable[[], float],
    *,
    num_kills: int,
    within_s: float = 3600.0,
    **load: Any,
) -> int:
    """Kill an engine after each pause, once another is there; a stream that loses three in a row fails."""
    done, until = 0, time.monotonic() + within_s
    with under_load(service, expected, row, **load):
        while done < num_kills and time.monotonic() < until:
            time.sleep(draw_pause_s())
            alive = service.known_engines()
            if len(alive) > 1:
                kill(alive[done % len(alive)])
                done += 1
        row.recovery_s = wait_until_whole(service)
    return done


def count_leaks(service: FaultyService, row: FaultRow) -> Remains:
    """Count into the row what is left once all clients are gone, and some time has passed for it to go."""
    deadline = time.monotonic() + CLEAN_S
    while (remains := service.remains()).total and time.monotonic() < deadline:
        time.sleep(0.2)
    row.leaked += remains.total
    if remains.total:
        row.note = "; ".join(filter(None, (row.note, f"left: {remains}")))
    return remains


def judge(report: FaultReport, row: FaultRow, service: FaultyService, without: str = "", **allowed: Any) -> None:
    """Close a row: with its protection on no request may be harmed, and without it at least one must be."""
    row.without = without
    if without:
        is_refused = row.refused > 0 and not allowed.get("may_refuse")
        report.is_seen(row, is_harmed=row.num_harmed > 0 or is_refused)
    else:
        count_leaks(service, row)
        report.passes(row, **allowed)


def freeze(pid: int) -> None:
    """Stop a process in whatever it does."""
    os.kill(pid, signal.SIGSTOP)


def thaw(pid: int) -> None:
    """Let it go on, if it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)

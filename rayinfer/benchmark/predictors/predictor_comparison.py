"""The comparison of predictors with their peers: rows in interleaved rounds, and a report after each."""

import asyncio
import datetime
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from rayinfer.benchmark.control_plane.batching import measure_batching
from rayinfer.benchmark.peers.machine import KERNEL_FLAGS, cpu_flags, usable_cpus
from rayinfer.benchmark.peers.processes import running_server
from rayinfer.benchmark.peers.systems import SystemUnderTest
from rayinfer.benchmark.predictors.in_process import measure_bad, measure_broken, measure_identical
from rayinfer.benchmark.predictors.passages import ONE_TEXT, image_files, passages
from rayinfer.benchmark.predictors.predictor_report import PredictorReport
from rayinfer.benchmark.predictors.row_results import Figures, RowResult
from rayinfer.benchmark.predictors.rows import ARRIVAL, OPENVINO, ORT, OWN, PEERS, ROWS, SENTENCES, SORTED
from rayinfer.benchmark.predictors.runtimes import Programs, Runtimes, busy_process
from rayinfer.benchmark.report import describe_environment, percentiles
from rayinfer.errors import ConfigError, RayinferError

Log = Callable[[str], None]

NUM_BUSY_TEXTS = 300  # fewer: beside a busy core some peers take minutes
NUM_WARM_UP = 64
MODEL = "model"  # on our server
SETTLE_S = 8.0  # after which Ray has ended what it does behind a start, and the service is idle


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonPlan:
    """Rows, sizes and places of a comparison."""

    rows: tuple[str, ...]
    rounds: int
    num_texts: int
    num_images: int
    num_requests: int  # of one sentence through HTTP
    num_broken: int
    clients: tuple[int, ...]
    seconds: float  # of each load on the batcher
    seed: int
    command: str
    server_command: tuple[str, ...]  # of our service, before the model
    results_folder: Path
    images: Path | None = None
    resumes: bool = False  # leaves out the rows that the results have

    def __post_init__(self) -> None:
        if unknown := [row for row in self.rows if row not in ROWS]:
            raise ConfigError(f"rows must be some of {','.join(ROWS)}, got {','.join(unknown)}")

    @property
    def needs_texts(self) -> bool:
        """Whether a row has the embedder."""
        return not {"texts", "int8", "http", "busy", "identical"}.isdisjoint(self.rows)

    @property
    def needs_images(self) -> bool:
        """Whether a row has the image classifier."""
        return not {"bad", "images", "broken"}.isdisjoint(self.rows)


def run_predictor_comparison(programs: Programs, plan: ComparisonPlan, log: Log) -> PredictorReport:
    """Measure the rows of the plan, and write the report after each."""
    report = PredictorReport(plan.results_folder)
    logs = Path(tempfile.mkdtemp(prefix="rayinfer-predictors-"))
    log(f"output of all systems goes to {logs}")
    with Runtimes(programs, logs) as runtimes:
        measured = _Rows(runtimes, plan, logs, log)
        for row in plan.rows:
            if plan.resumes and row in report.results:
                continue
            result = _empty_result(row, programs, plan)
            for number in range(plan.rounds):
                log(f"{row}, round {number + 1} of {plan.rounds}")
                result.load_average.append(round(os.getloadavg()[0], 2))
                measured.measure(row, result)
            report.put(result)
    return report


class _Rows:
    """Measures one round of a row; a system that fails is left out of the rounds that follow."""

    def __init__(self, runtimes: Runtimes, plan: ComparisonPlan, logs: Path, log: Log) -> None:
        self._runtimes, self._plan, self._logs, self._log = runtimes, plan, logs, log
        self._texts = passages(plan.num_texts, plan.seed)
        self._images = [str(path) for path in image_files(plan.images, plan.num_images, logs)]

    def measure(self, row: str, result: RowResult) -> None:
        """Measure one round."""
        programs, plan = self._runtimes.programs, self._plan
        match row:
            case "texts" | "int8":
                self._measure_texts(result, is_int8=row == "int8")
            case "http":
                self._measure_http(result)
            case "batcher":
                self._measure_batcher(result)
            case "busy":
                self._measure_busy(result)
            case "images":
                for runtime in self._present(result, OWN, ORT, OPENVINO):
                    with self._recording(result, runtime):
                        process = self._runtimes.get(runtime, is_image=True)
                        process.run(images=self._images[:2])
                        took = process.run(images=self._images)
                        rate = len(self._images) / took.seconds[0]
                        result.add(runtime, {"images_s": rate, "cpu_ms": 1e3 * took.cpu_s[0] / len(self._images)})
            case "bad":
                self._add(result, measure_bad(programs.image_model, programs.num_threads))
            case "identical":
                self._add(result, measure_identical(programs.text_model, programs.num_threads))
            case "broken":
                self._add(result, measure_broken(programs.image_model, programs.num_threads, plan.num_broken))

    def _measure_texts(self, result: RowResult, *, is_int8: bool) -> None:
        orders: Mapping[str, tuple[str, bool]] = {
            OWN: (OWN, False),
            SENTENCES: (SENTENCES, True),
            f"{ORT} {SORTED}": (ORT, True),
            f"{ORT} {ARRIVAL}": (ORT, False),
            f"{OPENVINO} {SORTED}": (OPENVINO, True),
        }
        for label, (runtime, may_sort) in orders.items():
            if (is_int8 and runtime == SENTENCES) or not self._is_present(result, label, runtime):
                continue
            with self._recording(result, label, runtime):
                process = self._runtimes.get(runtime, is_int8=is_int8)
                process.run(texts=self._texts[:NUM_WARM_UP], may_sort=may_sort)
                took = process.run(texts=self._texts, may_sort=may_sort)
                rate = len(self._texts) / took.seconds[0]
                result.add(label, {"texts_s": rate, "cpu_s": took.cpu_s[0]})

    def _measure_http(self, result: RowResult) -> None:
        """Measure one client of an idle service, and the model alone on the same text."""
        count, programs = self._plan.num_requests, self._runtimes.programs
        with self._recording(result, "model alone", OWN):
            process = self._runtimes.get(OWN)
            process.run(texts=[ONE_TEXT], repeats=10)
            result.add("model alone", _latencies(process.run(texts=[ONE_TEXT], repeats=count).seconds))
        options = ["--port", "{port}", "--name", MODEL, "--num-threads", str(programs.num_threads)]
        options += ["--dtype", "float32", "--prediction-cache-bytes", "0"]
        command = [*self._plan.server_command, str(programs.text_model), *options]
        system = SystemUnderTest(name=OWN, mode="float32", server_command=command, ready_path="/ready")
        with self._recording(result, "HTTP", OWN), running_server(system, self._logs / "server.log") as server:
            time.sleep(SETTLE_S)
            result.add("HTTP", _latencies(_ask(f"{server.base_url}/v1/embeddings", count)))

    def _measure_batcher(self, result: RowResult) -> None:
        with self._recording(result, OWN):
            report = asyncio.run(measure_batching(self._plan.clients, self._plan.seconds, self._plan.seed))
            for each in report.closed:
                p50 = each.latency.p50
                figures = {"p50_ms": p50, "ratio": p50 / each.ideal_ms, "batch": each.mean_batch}
                result.add(f"{each.num_clients} clients", figures)
            poisson = report.poisson
            result.add("Poisson", {"p50_ms": poisson.latency.p50, "p99_steps": poisson.p99_steps})

    def _measure_busy(self, result: RowResult) -> None:
        texts = self._texts[:NUM_BUSY_TEXTS]
        for runtime in self._present(result, OWN, *PEERS):
            with self._recording(result, runtime):
                process = self._runtimes.get(runtime)
                process.run(texts=texts[:NUM_WARM_UP], may_sort=True)
                quiet = process.run(texts=texts, may_sort=True).seconds[0]
                with busy_process(usable_cpus()):
                    busy = process.run(texts=texts, may_sort=True).seconds[0]
                result.add(runtime, {"share": quiet / busy, "texts_s": len(texts) / busy})

    def _present(self, result: RowResult, *runtimes: str) -> list[str]:
        """Return those runtimes that can be measured."""
        return [runtime for runtime in runtimes if self._is_present(result, runtime, runtime)]

    def _is_present(self, result: RowResult, label: str, runtime: str) -> bool:
        """Return whether a system can be measured; record why not, once."""
        if label in result.missing:
            return False
        if (reason := self._runtimes.programs.missing(runtime)) is not None:
            self._log(f"{label} is not measured: {reason}")
            result.missing[label] = reason
        return reason is None

    @contextmanager
    def _recording(self, result: RowResult, label: str, runtime: str | None = None) -> Iterator[None]:
        """Record why a system has no figures, in place of an error."""
        runtime = runtime or label
        try:
            self._log(f"{result.row}: {label}")
            result.versions.setdefault(runtime, self._runtimes.programs.version(runtime))
            yield
        except (RayinferError, httpx.HTTPError) as error:
            if label not in result.missing:
                self._log(f"{label} is not measured: {error}")
            result.missing[label] = str(error) or type(error).__name__

    def _add(self, result: RowResult, measuring: Coroutine[Any, Any, dict[str, Figures]]) -> None:
        """Record what is measured in this process."""
        with self._recording(result, OWN):
            for label, figures in asyncio.run(measuring).items():
                result.add(label, figures)


def _empty_result(row: str, programs: Programs, plan: ComparisonPlan) -> RowResult:
    return RowResult(
        row=row,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=plan.command,
        environment=asdict(describe_environment()),
        cpu_flags=[flag for flag in KERNEL_FLAGS if flag in cpu_flags()],
        num_threads=programs.num_threads,
        rounds=plan.rounds,
    )


def _ask(url: str, count: int) -> list[float]:
    """Send one sentence again and again over one connection, and return the seconds of each answer."""
    content = json.dumps({"model": MODEL, "input": ONE_TEXT, "encoding_format": "base64"}).encode()
    seconds = []
    with httpx.Client(trust_env=False, timeout=60, headers={"content-type": "application/json"}) as client:
        for _ in range(10 + count):
            started = time.perf_counter()
            client.post(url, content=content).raise_for_status()
            seconds.append(time.perf_counter() - started)
    return seconds[10:]


def _latencies(seconds: list[float]) -> Figures:
    spread = percentiles(seconds)
    assert spread is not None, "nothing was measured"
    return {"p50_ms": 1e3 * statistics.median(seconds), "p99_ms": spread.p99}

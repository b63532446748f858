"""The whole comparison: installed systems, interleaved runs, and a report after every workload."""

import datetime
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rayinfer.benchmark.load.report import describe_environment
from rayinfer.benchmark.peers.cases import ENGINE_WORKS, WORKS
from rayinfer.benchmark.peers.llama_cpp import llama_cpp_contenders
from rayinfer.benchmark.peers.machine import TELLING_FLAGS, memory_read_gb_s
from rayinfer.benchmark.peers.openvino import openvino_contenders
from rayinfer.benchmark.peers.own import own_contenders
from rayinfer.benchmark.peers.plot import svg
from rayinfer.benchmark.peers.results import Section, read_sections, write_sections
from rayinfer.benchmark.peers.rounds import EngineHall, ReadMemory, Tell, measure_servers, take_turns
from rayinfer.benchmark.peers.system_under_test import Contender, Missing, Setup
from rayinfer.benchmark.peers.table import markdown
from rayinfer.benchmark.peers.vllm import vllm_contenders
from rayinfer.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Workloads, rounds and output folder of a comparison."""

    works: tuple[str, ...]
    rounds: int
    command: str  # as it was typed, for the report
    results_folder: Path

    def __post_init__(self) -> None:
        unknown = [work for work in self.works if work not in WORKS]
        if unknown or not self.works:
            raise ConfigError(f"work must be some of {','.join(WORKS)}, got {','.join(unknown) or 'none'}")
        if self.rounds < 1:
            raise ConfigError(f"rounds must be at least 1, got {self.rounds}")


class Report:
    """The files of one model's comparison; works that are not measured anew stay as they were."""

    def __init__(self, model: str, folder: Path) -> None:
        self._model = model
        self._stem = folder / f"peers-{model}"
        self.sections = read_sections(self.json_file)

    @property
    def json_file(self) -> Path:
        """Return the file of all runs."""
        return self._stem.parent / f"{self._stem.name}.json"

    @property
    def markdown_file(self) -> Path:
        """Return the file of the tables."""
        return self._stem.parent / f"{self._stem.name}.md"

    @property
    def svg_file(self) -> Path:
        """Return the file of the picture."""
        return self._stem.parent / f"{self._stem.name}.svg"

    def put(self, *sections: Section) -> None:
        """Add new sections and write all files."""
        found = self.sections | {section.work: section for section in sections}
        self.sections = {work: found[work] for work in WORKS if work in found}
        write_sections(self.sections, self.json_file)
        self.markdown_file.write_text(markdown(self._model, self.sections))
        self.svg_file.write_text(svg(self._model, self.sections))


def find_contenders(setup: Setup, own_modes: tuple[str, ...]) -> list[Contender | Missing]:
    """Find all contenders, our own modes first."""
    return [
        *own_contenders(setup, own_modes),
        *vllm_contenders(setup),
        *openvino_contenders(setup),
        *llama_cpp_contenders(setup),
    ]


def run_comparison(
    found: Sequence[Contender | Missing],
    setup: Setup,
    plan: Plan,
    tell: Tell,
    read_memory: Callable[[int], float] = memory_read_gb_s,
) -> Report:
    """Measure all contenders on every workload of the plan, and write the report after each."""
    contenders = [one for one in found if isinstance(one, Contender)]
    missing = {one.label: one.reason for one in found if isinstance(one, Missing)}
    for label, reason in missing.items():
        tell(f"{label} does not take part: {reason}")
    sections = {work: _section(work, plan, setup, missing) for work in WORKS if work in plan.works}
    report = Report(Path(setup.model).name, plan.results_folder)
    logs = Path(tempfile.mkdtemp(prefix="rayinfer-peers-"))
    tell(f"what everybody says goes to {logs}")

    def read() -> float:
        return read_memory(setup.num_threads)

    engine_works = {work: section for work, section in sections.items() if work in ENGINE_WORKS}
    if engine_works:
        _measure_engines(contenders, engine_works, report, logs, read, tell)
    server_works = {work: section for work, section in sections.items() if work not in ENGINE_WORKS}
    if server_works:
        measure_servers(contenders, server_works, logs=logs, vocab_size=setup.vocab_size, read_memory=read, tell=tell)
        report.put(*server_works.values())
    return report


def _measure_engines(
    contenders: Sequence[Contender],
    sections: dict[str, Section],
    report: Report,
    logs: Path,
    read_memory: ReadMemory,
    tell: Tell,
) -> None:
    with EngineHall(logs, tell) as hall:
        hall.open(contenders)
        for work, section in sections.items():
            able = hall.those_for(work, contenders, section)
            take_turns(able, section, partial(hall.measure, work), read_memory=read_memory, tell=tell)
            report.put(section)


def _section(work: str, plan: Plan, setup: Setup, missing: dict[str, str]) -> Section:
    return Section(
        work=work,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        command=plan.command,
        environment=asdict(describe_environment()),
        cpu_flags=[flag for flag in TELLING_FLAGS if flag in setup.cpu_flags],
        rounds=plan.rounds,
        missing=missing,
    )

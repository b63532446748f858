"""Report of speculative decoding beside none, and beside a peer with its own drafts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.sampling_params import Speculation

OFF = "off"
HEADS = ("task", "streams", "off tok/s", "tok/s", "gain", "rounds' range", "accepted %", "tokens a step and stream")
BEST_HEADS = (
    "task",
    "streams",
    "its off tok/s",
    "best mode",
    "tok/s",
    "its gain",
    "ours / its, off",
    "ours / its best",
)
MODE_HEADS = ("task", "streams", "mode", "tok/s", "gain", "rounds' range", "accepted %", "drafted a token", "same %")


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskResult:
    """Rates of a kind of task; `gain` is the median over the rounds, of one rate over the other."""

    kind: str
    num_streams: int
    off_tok_s: float
    tok_s: float
    gain: float
    range: tuple[float, float]  # least and most of the rounds
    accepted: float  # share of draft tokens
    tokens_a_step: float  # of a stream, in steps that decode it


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerResult:
    """Rate of a peer in one of its modes; ratios are medians over the rounds."""

    kind: str
    num_streams: int
    mode: str  # off: without drafts
    tok_s: float
    gain: float  # over its own rate without drafts
    range: tuple[float, float]  # of the gain: least and most of the rounds
    accepted: float  # share of draft tokens
    drafted: float  # draft tokens for each token of the answers
    same: float | None  # share of our answers' tokens that come before the first different one
    ratio: float  # our rate over its own: with drafts, or of both without them
    ratio_range: tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerReport:
    """Rates of a peer on the same prompts, in the same rounds."""

    name: str
    version: str
    model: str  # file
    commands: dict[str, str]  # by mode
    results: list[PeerResult]

    def tables(self) -> list[Table]:
        """Return the best mode of each kind of task beside us, all modes, and their commands."""
        title = f"{self.name} {self.version}, {self.model}"
        rows = [_mode_row(each) for each in self.results]
        return [
            Table(f"{title}: the fastest of its modes with drafts", BEST_HEADS, self._best_rows()),
            Table(f"{title}: all modes", MODE_HEADS, rows),
            Table(f"Commands of {self.name}", ("mode", "command"), list(self.commands.items())),
        ]

    def _best_rows(self) -> list[tuple[object, ...]]:
        off = {(each.kind, each.num_streams): each for each in self.results if each.mode == OFF}
        rows: list[tuple[object, ...]] = []
        for (kind, number), base in off.items():
            modes = [each for each in self.results if (each.kind, each.num_streams) == (kind, number)]
            best = max((each for each in modes if each.mode != OFF), key=lambda each: each.tok_s)
            rates = (base.tok_s, best.mode, best.tok_s, best.gain)
            rows.append((kind, number, *rates, _with_range(base), _with_range(best)))
        return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class SpeculationReport:
    """Result of `rayinfer bench speculation`."""

    command: str
    model: str
    kernels: str
    speculation: Speculation
    temperature: float
    num_tokens: int  # of an answer, at most
    num_rounds: int
    results: list[TaskResult]
    peer: PeerReport | None = None
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the gains, and the peer's."""
        rows = []
        for each in self.results:
            rates = (each.off_tok_s, each.tok_s, each.gain, _span(each.range))
            rows.append((each.kind, each.num_streams, *rates, round(100 * each.accepted, 1), each.tokens_a_step))
        own = Table(f"speculation {self.speculation}, {self.model}, temperature {self.temperature}", HEADS, rows)
        return [own, *(self.peer.tables() if self.peer else [])]


def _mode_row(each: PeerResult) -> Sequence[object]:
    same = None if each.same is None else round(100 * each.same, 1)
    rates = (each.tok_s, each.gain, _span(each.range))
    return each.kind, each.num_streams, each.mode, *rates, round(100 * each.accepted, 1), each.drafted, same


def _with_range(each: PeerResult) -> str:
    return f"{each.ratio} ({_span(each.ratio_range)})"


def _span(ends: tuple[float, float]) -> str:
    return f"{ends[0]} to {ends[1]}"

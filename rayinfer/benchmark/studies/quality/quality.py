"""Accuracy of quantisation: perplexity and top-1 agreement of each mode with float32, on the same real text."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.benchmark.load.report import Environment, describe_environment
from rayinfer.config import EngineConfig, engine_config
from rayinfer.engine.build_single_rank import build_one_rank_engine
from rayinfer.engine.loop.engine import Engine
from rayinfer.errors import ConfigError
from rayinfer.optimization.mode_checks import QUALITY_LIMITS
from rayinfer.outputs import TokenLogprobs
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

BuildEngine = Callable[[EngineConfig, Path], Engine]

# All but the first compute in bfloat16.
MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "float32": {"dtype": "float32"},
        "bfloat16": {"dtype": "bfloat16"},
        "int8": {"dtype": "bfloat16", "quantization": "int8"},
        "int8-dynamic": {"dtype": "bfloat16", "quantization": "int8-dynamic"},
        "int4": {"dtype": "bfloat16", "quantization": "int4"},
        "int8-kv": {"dtype": "bfloat16", "kv_cache_dtype": "int8"},
        "fp8": {"dtype": "bfloat16", "quantization": "fp8"},
        "fp8-kv": {"dtype": "bfloat16", "kv_cache_dtype": "fp8"},
        "fp8+fp8-kv": {"dtype": "bfloat16", "quantization": "fp8", "kv_cache_dtype": "fp8"},
    }
)
CPU_MODES = tuple(mode for mode in MODES if not mode.startswith("fp8"))  # the others need a GPU
REFERENCE = "float32"


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityPlan:
    """Model, modes and texts of a measurement; each text is a list of token ids."""

    model: str
    folder: Path  # what `resolve_model` returned for it
    weights: str  # what the checkpoint's numbers were before anything was done to them
    text: str  # where the texts come from
    texts: Sequence[list[int]]
    modes: tuple[str, ...] = CPU_MODES

    def __post_init__(self) -> None:
        if unknown := [mode for mode in self.modes if mode not in MODES]:
            raise ConfigError(f"modes must be some of {','.join(MODES)}, got {','.join(unknown)}")
        if not any(len(text) > 1 for text in self.texts):
            raise ConfigError(f"{self.text} holds no text to predict")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeQuality:
    """Accuracy of one mode on the texts; percentages are of float32's."""

    mode: str
    perplexity: float
    above_float32_percent: float
    error_percent: float  # one standard error of the figure before, by the spread between tokens
    same_choice: float  # share of places where the likeliest token is float32's
    limit_percent: float | None  # what the mode is allowed

    @property
    def is_above_limit(self) -> bool:
        """Return whether the mode's loss exceeds its limit."""
        return self.limit_percent is not None and self.above_float32_percent > self.limit_percent


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityReport:
    """The result of `rayinfer bench quality`."""

    model: str
    weights: str
    text: str
    num_predicted: int
    modes: list[ModeQuality]
    command: str
    card: str | None = None  # where it was measured on a GPU
    environment: Environment = field(default_factory=describe_environment)


@dataclass(frozen=True, slots=True)
class Predictions:
    """Log probability of each predicted token, and the most likely token at its position."""

    logprobs: list[float]
    choices: list[int]


def run_quality(
    plan: QualityPlan,
    settings: Mapping[str, Any],
    command: str,
    say: Callable[[str], None],
    build: BuildEngine = build_one_rank_engine,
) -> QualityReport:
    """Predict the texts in every mode, one engine after the other; float32 always runs, and first."""
    reference, found = None, []
    for mode in dict.fromkeys((REFERENCE, *plan.modes)):
        say(f"{plan.model}: {mode}")
        got = predict(plan, {**settings, **MODES[mode]}, build)
        reference = reference or got
        found.append(compare(mode, got, reference))
    assert reference is not None
    return QualityReport(
        model=Path(plan.model).name,
        weights=plan.weights,
        text=plan.text,
        num_predicted=len(reference.logprobs),
        modes=found,
        command=command,
    )


def predict(plan: QualityPlan, settings: Mapping[str, Any], build: BuildEngine = build_one_rank_engine) -> Predictions:
    """Predict every token of the texts from those before it, with an engine of these settings."""
    defaults = {"allow_inaccurate_quantization": True, "enable_prefix_caching": False}
    engine = build(engine_config(model=plan.model, **{**defaults, **settings}), plan.folder)
    try:
        scored = _score(engine, plan.texts)
    finally:
        engine.exit()
    logprobs, choices = [], []
    for text, places in zip(plan.texts, scored, strict=True):
        for token_id, place in zip(text, places, strict=True):
            if place is not None:
                logprobs.append(place[token_id].logprob)
                choices.append(_likeliest(place))
    return Predictions(logprobs, choices)


def _score(engine: Engine, texts: Sequence[list[int]]) -> list[list[TokenLogprobs | None]]:
    """Return the log probabilities of each text's tokens; raises RuntimeError for a text that has none."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    for number, text in enumerate(texts):
        engine.add_request(GenerationRequest(request_id=str(number), prompt_token_ids=text, sampling_params=params))
    scored: dict[int, list[TokenLogprobs | None]] = {}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            if delta.prompt_logprobs is not None:
                scored[int(delta.request_id)] = delta.prompt_logprobs
    if missing := [number for number in range(len(texts)) if number not in scored]:
        raise RuntimeError(f"the engine gave no log probabilities for {len(missing)} of {len(texts)} texts")
    return [scored[number] for number in range(len(texts))]


def _likeliest(place: TokenLogprobs) -> int:
    return min(place, key=lambda token_id: place[token_id].rank)


def compare(mode: str, got: Predictions, reference: Predictions) -> ModeQuality:
    """Put a mode beside float32."""
    losses = [theirs - ours for ours, theirs in zip(got.logprobs, reference.logprobs, strict=True)]
    error = statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else 0.0
    same = sum(ours == theirs for ours, theirs in zip(got.choices, reference.choices, strict=True))
    return ModeQuality(
        mode=mode,
        perplexity=round(math.exp(-statistics.fmean(got.logprobs)), 4),
        above_float32_percent=round(100 * math.expm1(statistics.fmean(losses)), 3),
        error_percent=round(100 * error, 3),
        same_choice=round(same / len(losses), 4),
        limit_percent=QUALITY_LIMITS.get(mode),
    )


def markdown(report: QualityReport) -> str:
    """Write the result as a table."""
    lines = [
        f"## {report.model}",
        "",
        f"Weights: {report.weights}. Text: {report.text}, {report.num_predicted:,} tokens predicted.",
        "",
        "| mode | perplexity | above float32 | allowed | same choice as float32 |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in table_rows(report)]
    environment = report.environment
    lines += [
        "",
        f"`{report.command}`, {report.card or environment.cpu_model}, commit {environment.commit or 'unknown'}.",
        "",
    ]
    return "\n".join(lines)


def table_rows(report: QualityReport) -> list[tuple[str, ...]]:
    """Write the modes as rows of a table."""
    return [
        (
            each.mode,
            f"{each.perplexity:.3f}",
            "" if each.mode == REFERENCE else f"{each.above_float32_percent:+.2f} % ± {each.error_percent:.2f}",
            "" if each.limit_percent is None else f"{each.limit_percent:g} %",
            "" if each.mode == REFERENCE else f"{100 * each.same_choice:.1f} %",
        )
        for each in report.modes
    ]


def write_markdown(report: QualityReport, path: Path) -> None:
    """Write the table to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(markdown(report), encoding="utf-8")

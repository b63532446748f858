"""Accuracy of quantization: perplexity and top-1 agreement of each mode with float32, on the same real text."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.benchmark.report import Environment, Table, describe_environment, write_markdown
from rayinfer.config import EngineConfig, engine_config
from rayinfer.engine.build import build_engine
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
HEADS = ("mode", "perplexity", "above float32", "allowed", "same choice as float32")


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityPlan:
    """Model, modes and texts of a measurement; each text is a list of token ids."""

    model: str
    folder: Path  # what `resolve_model` returned for it
    weights: str  # number format of the checkpoint
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
    same_choice: float  # fraction of positions where the likeliest token is float32's
    limit_percent: float | None  # what the mode is allowed

    @property
    def is_above_limit(self) -> bool:
        """Return whether the mode's loss exceeds its limit."""
        return self.limit_percent is not None and self.above_float32_percent > self.limit_percent

    def row(self) -> tuple[object, ...]:
        """Return a row below HEADS."""
        is_reference = self.mode == REFERENCE
        return (
            self.mode,
            f"{self.perplexity:.3f}",
            None if is_reference else f"{self.above_float32_percent:+.2f} % ± {self.error_percent:.2f}",
            None if self.limit_percent is None else f"{self.limit_percent:g} %",
            None if is_reference else f"{100 * self.same_choice:.1f} %",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class QualityReport:
    """Result of `rayinfer bench quality`."""

    model: str
    weights: str
    text: str
    num_predicted: int
    modes: list[ModeQuality]
    command: str
    card: str | None = None  # GPU, if it was measured on one
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return all modes."""
        title = f"{self.model}. Weights: {self.weights}. Text: {self.text}, {self.num_predicted:,} tokens predicted."
        return [Table(title, HEADS, [mode.row() for mode in self.modes])]

    def write_markdown(self, path: Path) -> None:
        """Write the table to a file."""
        machine = self.card or self.environment.cpu_model
        note = f"`{self.command}`, {machine}, commit {self.environment.commit or 'unknown'}."
        write_markdown(path, f"Quality of {self.model}", self.tables(), note)


@dataclass(frozen=True, slots=True)
class Predictions:
    """Log probability of each predicted token, and the most likely token at its position."""

    logprobs: list[float]
    choices: list[int]


def run_quality(
    plan: QualityPlan,
    settings: Mapping[str, Any],
    command: str,
    log: Callable[[str], None],
    build: BuildEngine = build_engine,
) -> QualityReport:
    """Predict the texts in every mode, one engine after the other; float32 always runs, and first."""
    reference, found = None, []
    for mode in dict.fromkeys((REFERENCE, *plan.modes)):
        log(f"{plan.model}: {mode}")
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


def predict(plan: QualityPlan, settings: Mapping[str, Any], build: BuildEngine = build_engine) -> Predictions:
    """Predict every token of the texts from those before it, with an engine of these settings."""
    defaults = {"allow_inaccurate_quantization": True, "enable_prefix_caching": False}
    engine = build(engine_config(model=plan.model, **{**defaults, **settings}), plan.folder)
    try:
        scored = _score(engine, plan.texts)
    finally:
        engine.exit()
    logprobs, choices = [], []
    for text, positions in zip(plan.texts, scored, strict=True):
        for token_id, candidates in zip(text, positions, strict=True):
            if candidates is not None:
                logprobs.append(candidates[token_id].logprob)
                choices.append(next(candidate for candidate, logprob in candidates.items() if logprob.rank == 1))
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

"""Cost of structured outputs: constrained beside unconstrained answers, in turns, and the compilation of a schema."""

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llguidance import LLTokenizer

from rayinfer.benchmark.load.workloads import offline_workload
from rayinfer.benchmark.report import Environment, Table, describe_environment
from rayinfer.engine.worker.tokenizer_file import read_tokenizer_file
from rayinfer.errors import RayinferError
from rayinfer.grammars.compilation import compile_grammar
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.llm import LLM
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.model_config import read_model_config
from rayinfer.sampling_params import SamplingParams

PROMPT_TOKENS = 32
LARGE_SCHEMA_BYTES = 10_000
HEADS = ("streams", "temperature", "unconstrained tok/s", "constrained tok/s", "slower by %", "rounds' range %")

Log = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamsResult:
    """Rates with a number of streams; `slower` is the median over the rounds, of a token's time over the other's."""

    num_streams: int
    temperature: float
    free_tok_s: float
    constrained_tok_s: float
    slower: float
    range: tuple[float, float]  # least and most of the rounds


@dataclass(frozen=True, kw_only=True, slots=True)
class StructuredReport:
    """Result of `rayinfer bench structured`."""

    command: str
    model: str
    kernels: str
    num_tokens: int  # of an answer
    num_rounds: int
    results: list[StreamsResult]
    schema_bytes: int
    compile_ms: list[float]  # of a large schema with the model's tokens, first mask included
    environment: Environment = field(default_factory=describe_environment)

    def tables(self) -> list[Table]:
        """Return the ratios and the times of compilation."""
        rows = []
        for each in self.results:
            low, high = (round(100 * part, 1) for part in each.range)
            rates = (each.free_tok_s, each.constrained_tok_s)
            rows.append(
                (each.num_streams, each.temperature, *rates, round(100 * each.slower, 1), f"{low:+} to {high:+}")
            )
        compilation = [(self.schema_bytes, statistics.median(self.compile_ms), max(self.compile_ms))]
        return [
            Table(f"structured outputs, {self.model}", HEADS, rows),
            Table("compilation of a schema", ("bytes", "median ms", "max ms"), compilation),
        ]


def run_structured_benchmark(
    model: str,
    settings: Mapping[str, Any],
    streams: Sequence[int],
    *,
    num_tokens: int,
    num_rounds: int,
    temperature: float,
    command: str,
    log: Log,
) -> StructuredReport:
    """Measure rounds of an unconstrained and a constrained batch for each number of streams."""
    folder = resolve_model(model)
    log("compiling a schema")
    text, times = _compilation_times(folder)
    with LLM(model, enable_prefix_caching=False, **settings) as llm:
        sizes = {"num_tokens": num_tokens, "num_rounds": num_rounds}
        results = [_measure(llm, number, **sizes, temperature=temperature, log=log) for number in streams]
        kernels = llm.description.kernels
    return StructuredReport(
        command=command,
        model=model,
        kernels=kernels,
        num_tokens=num_tokens,
        num_rounds=num_rounds,
        results=results,
        schema_bytes=len(text),
        compile_ms=times,
    )


def _measure(
    llm: LLM, num_streams: int, *, num_tokens: int, num_rounds: int, temperature: float, log: Log
) -> StreamsResult:
    lengths = (PROMPT_TOKENS, PROMPT_TOKENS), (num_tokens, num_tokens)
    prompts = offline_workload(num_streams, *lengths, vocab_size=min(1000, llm.description.vocab_size), seed=1).prompts
    forms = [StructuredOutputsParams(json=schema, disable_any_whitespace=True) for schema in endless_schemas()]
    common: dict[str, Any] = {"max_tokens": num_tokens, "temperature": temperature}
    free = [SamplingParams(ignore_eos=True, seed=i, **common) for i in range(num_streams)]
    bound = [SamplingParams(structured_outputs=forms[i % len(forms)], seed=i, **common) for i in range(num_streams)]
    for params in (free, bound):
        _seconds_per_token(llm, prompts, params)
    times: dict[bool, list[float]] = {True: [], False: []}
    for number in range(num_rounds):
        log(f"{num_streams} streams: round {number + 1} of {num_rounds}")
        for is_bound in (False, True) if number % 2 == 0 else (True, False):
            times[is_bound].append(_seconds_per_token(llm, prompts, bound if is_bound else free))
    ratios = [ours / theirs - 1.0 for ours, theirs in zip(times[True], times[False], strict=True)]
    return StreamsResult(
        num_streams=num_streams,
        temperature=temperature,
        free_tok_s=round(1 / statistics.median(times[False]), 1),
        constrained_tok_s=round(1 / statistics.median(times[True]), 1),
        slower=round(statistics.median(ratios), 4),
        range=(round(min(ratios), 4), round(max(ratios), 4)),
    )


def _seconds_per_token(llm: LLM, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]) -> float:
    started = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - started
    choices = [output.outputs[0] for output in outputs]
    if wrong := [choice.finish_reason for choice in choices if choice.finish_reason != "length"]:
        raise RayinferError(f"{len(wrong)} answers ended early, by {wrong[0]}")
    return seconds / sum(len(choice.token_ids) for choice in choices)


def _compilation_times(folder: Path, num_times: int = 9) -> tuple[str, list[float]]:
    config = read_model_config(folder)
    contents, special_tokens = read_tokenizer_file(folder)
    tokenizer = LLTokenizer(contents, n_vocab=config.vocab_size, eos_token=list(config.eos_token_ids))
    text = json.dumps(large_schema(LARGE_SCHEMA_BYTES), separators=(",", ":"))
    times = []
    for _ in range(num_times):
        started = time.perf_counter()
        compile_grammar(StructuredOutputsParams(json=text), tokenizer, special_tokens)
        times.append(round(1e3 * (time.perf_counter() - started), 2))
    return text, times


def endless_schemas() -> list[dict[str, Any]]:
    """Return schemas whose answers do not end before hundreds of items: records, events and rows of numbers."""
    text, number = {"type": "string"}, {"type": "number"}
    person = _object(name=text, age={"type": "integer", "minimum": 0, "maximum": 120}, email=text, is_active=_BOOLEAN)
    levels = {"enum": ["debug", "info", "warning", "error"]}
    event = _object(
        level=levels, at={"type": "string", "format": "date-time"}, tags={"type": "array", "items": text, "maxItems": 3}
    )
    point = _object(x=number, y=number, label={"type": "string", "maxLength": 20}, near=_BOOLEAN)
    return [_object(items={"type": "array", "minItems": 400, "items": item}) for item in (person, event, point)]


def large_schema(num_bytes: int) -> dict[str, Any]:
    """Return a schema of nested objects, enums, patterns and references of about this size."""
    properties: dict[str, Any] = {}
    while len(json.dumps(properties, separators=(",", ":"))) < num_bytes:
        number = len(properties)
        properties[f"member_{number}"] = _object(
            kind={"enum": [f"kind-{number}-{index}" for index in range(6)]},
            code={"type": "string", "pattern": f"^[A-Z]{{2}}-{number}[0-9]{{1,6}}$"},
            amount={"type": "number", "minimum": -number, "maximum": 1000 + number},
            parts={"type": "array", "items": {"$ref": "#/$defs/part"}, "maxItems": 5},
        )
    part = _object(name={"type": "string", "maxLength": 30}, count={"type": "integer", "minimum": 0})
    return {**_object(**properties), "$defs": {"part": part}}


_BOOLEAN = {"type": "boolean"}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }

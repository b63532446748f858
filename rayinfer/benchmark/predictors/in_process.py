"""Rows that are measured in this process, through a dispatcher and an engine."""

import asyncio
import contextlib
import itertools
import struct
import zlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import numpy as np
import psutil
from tokenizers import Tokenizer as Backend
from tokenizers.models import BPE

from rayinfer.benchmark.predictors.passages import ONE_TEXT
from rayinfer.benchmark.predictors.row_results import Figures
from rayinfer.benchmark.predictors.rows import FAULTS, OWN
from rayinfer.config import engine_config
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.errors import RequestError
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cache_settings import PredictionCacheSettings
from rayinfer.prediction_cache.cached_predictor import CachedPredictor
from rayinfer.prediction_cache.router_cache import RouterCache
from rayinfer.predictions import PredictionInput, PredictorDescription
from rayinfer.predictors.build_engine import assemble_engine, build_predictor_engine
from rayinfer.predictors.runner import RunnerItem, RunnerResult
from rayinfer.predictors.warm_up import PNG
from rayinfer.protocols import GenerationRequest, TextGenerator
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.tokenizer import Tokenizer

NUM_ITEMS = 32
NUM_IDENTICAL = 64
GOOD, RAISES, IS_NAN = 1, 2, 3  # tokens
MAX_TOKENS = 8
CACHE_BYTES = 2**20
BOMB_SIDES = (60_000, 8_193)  # pixels
BROKEN_AT_ONCE = 16
GOOD_EVERY = 20  # broken images
ONE_TOKEN = SamplingParams(max_tokens=1)
_NUMBERS = itertools.count()


class FaultyRunner:
    """A model that fails on one token, and computes NaN of another."""

    description = PredictorDescription(tasks=("embed",), embedding_size=1)
    max_input_tokens = MAX_TOKENS
    vocab_size = 8

    def __init__(self) -> None:
        self.num_runs = 0

    def run(self, batch: Sequence[RunnerItem]) -> list[RunnerResult]:
        """Return each item's length, or raise."""
        self.num_runs += 1
        tokens = [token for item in batch for token in item.token_ids]
        if RAISES in tokens:
            raise RuntimeError("an input that the model cannot bear")
        return [np.array([np.nan if IS_NAN in each.token_ids else len(each.token_ids)], np.float32) for each in batch]

    def close(self) -> None:
        """Do nothing: there are no weights."""


async def measure_bad(image_model: Path, num_threads: int) -> dict[str, Figures]:
    """Send 31 good items and one that is bad, of each kind, at once, and count the right answers."""
    found = await measure_faults()
    config = engine_config(model=str(image_model), num_threads=num_threads)
    async with dispatcher_over(build_predictor_engine(config, image_model)) as (dispatcher, _):
        images = [bomb(BOMB_SIDES[0]) if place == 7 else PNG for place in range(NUM_ITEMS)]
        ends = await asyncio.gather(*(_ends_well(dispatcher, image=each) for each in images))
        found["bomb"] = {"right": float(sum(ends))}
    return found


async def measure_faults() -> dict[str, Figures]:
    """Do so with a model that fails, and count how often it runs."""
    good = [GOOD] * 2
    bad = dict(zip(FAULTS, ([RAISES], [IS_NAN], [GOOD] * (MAX_TOKENS + 1)), strict=False))
    found = {}
    config = engine_config(model="faulty", max_num_seqs=NUM_ITEMS, max_num_batched_tokens=1024)
    for fault, tokens in bad.items():
        runner = FaultyRunner()
        async with dispatcher_over(assemble_engine(config, runner, FaultyRunner)) as (dispatcher, _):
            num_runs = runner.num_runs
            items = [tokens if place == 7 else good for place in range(NUM_ITEMS)]
            ends = await asyncio.gather(*(_ends_well(dispatcher, token_ids=each) for each in items))
            found[fault] = {"right": float(sum(ends)), "runs": float(runner.num_runs - num_runs)}
    return found


async def measure_identical(text_model: Path, num_threads: int) -> dict[str, Figures]:
    """Send equal requests at once, and count how many of them are computed."""
    config = engine_config(model=str(text_model), num_threads=num_threads)
    tokens = Tokenizer.from_folder(text_model).encode(ONE_TEXT)
    metrics = ServiceMetrics("benchmark")
    cache = RouterCache(PredictionCacheSettings(max_bytes=CACHE_BYTES), metrics).shared
    async with dispatcher_over(build_predictor_engine(config, text_model)) as (dispatcher, engine):
        cached = CachedPredictor("model", dispatcher, cache, metrics)
        before = engine.stats.prompt_tokens_total
        ends = await asyncio.gather(*(_ends_well(cached, token_ids=tokens) for _ in range(NUM_IDENTICAL)))
        computed = (engine.stats.prompt_tokens_total - before) / len(tokens)
    return {OWN: {"computed": computed, "right": float(sum(ends))}}


async def measure_broken(image_model: Path, num_threads: int, count: int) -> dict[str, Figures]:
    """Send bombs and broken images to one engine, a good image among every few, and watch its memory."""
    config = engine_config(model=str(image_model), num_threads=num_threads)
    draw = np.random.default_rng(0)
    kinds = [bomb(side) for side in BOMB_SIDES] + [b"\0", b"GIF89a", PNG[:40], draw.bytes(10_000), b"\xff\xd8" * 500]
    not_refused = lost = 0
    async with dispatcher_over(build_predictor_engine(config, image_model)) as (dispatcher, _):
        assert await _ends_well(dispatcher, image=PNG)
        before, loop = _memory_bytes(), asyncio.get_running_loop()
        started = loop.time()
        for start in range(0, count, BROKEN_AT_ONCE):
            numbers = range(start, min(start + BROKEN_AT_ONCE, count))
            broken = [_ends_well(dispatcher, image=kinds[number % len(kinds)]) for number in numbers]
            good = [_ends_well(dispatcher, image=PNG) for number in numbers if number % GOOD_EVERY == 0]
            ends = await asyncio.gather(*broken, *good)
            not_refused += sum(ends[: len(broken)])
            lost += len(good) - sum(ends[len(broken) :])
        seconds = loop.time() - started
        growth = _memory_bytes() - before
    figures = {"images_s": count / seconds, "growth_mb": growth / 1e6}
    return {OWN: figures | {"not_refused": float(not_refused), "lost": float(lost), "count": float(count)}}


@contextlib.asynccontextmanager
async def dispatcher_over(engine: SteppedEngine) -> AsyncIterator[tuple[Dispatcher, SteppedEngine]]:
    """Run an engine's loop, with a router's dispatcher before it."""
    running = AsyncEngine(engine)
    dispatcher = Dispatcher("model", Tokenizer(Backend(BPE())), ServiceMetrics("benchmark"), router_id="benchmark")
    running.start()
    dispatcher.engines.add("engine", running, running.description)
    try:
        yield dispatcher, engine
    finally:
        await dispatcher.close()
        await running.shutdown()


def bomb(side: int) -> bytes:
    """Make a small PNG that says it is far too large."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    return PNG[:8] + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(64))) + chunk(b"IEND", b"")


async def _ends_well(generator: TextGenerator, *, token_ids: Sequence[int] = (), image: bytes = b"") -> bool:
    """Send one item; returns whether its numbers have come."""
    description = generator.describe().predictor
    assert description is not None, "a model that generates"
    cost = 0 if token_ids else description.image_cost
    request = GenerationRequest(
        request_id=f"item-{next(_NUMBERS)}",
        prompt_token_ids=list(token_ids),
        sampling_params=ONE_TOKEN,
        prediction=PredictionInput(task=description.tasks[0], image=image, cost=cost),
    )
    try:
        outputs = [output async for output in generator.generate(request)]
    except RequestError:
        return False
    prediction = outputs[-1].prediction
    return outputs[-1].outputs[0].finish_reason == "stop" and prediction is not None and not prediction.error


def _memory_bytes() -> int:
    """Return the memory of this process and of those that decode images for it."""
    own = psutil.Process()
    total = 0
    for process in (own, *own.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total

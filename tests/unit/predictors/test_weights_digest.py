import asyncio
import contextlib
import shutil

import pytest

from rayinfer.config import engine_config
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.errors import EngineDead
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.prediction_cache.cached_predictor import CachedPredictor, PredictionCache
from rayinfer.prediction_cache.memory_cache import MemoryCache
from rayinfer.predictors.build_engine import assemble_engine, build_predictor_engine
from rayinfer.predictors.weights_digest import weights_digest
from rayinfer.protocols import Sleep, Wake
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.routing.engine_set import EngineSet
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.fake_runner import FakeRunner, item_request
from support.fakes.held_predictor import HeldPredictor
from support.tiny_models.tiny_encoders import make_tiny_encoder


@pytest.fixture
def folder(tmp_path):
    make_tiny_encoder(tmp_path / "model", "Bert", "Model")
    return tmp_path / "model"


def digest(folder, **settings):
    return weights_digest(engine_config(model=str(folder), **settings), folder)


def test_a_digest_is_that_of_the_weights_and_the_settings_of_numbers(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert digest(folder) == digest(tmp_path / "copy") == digest(folder, max_num_seqs=3)
    assert digest(folder) != digest(folder, dtype="bfloat16")


def test_one_changed_byte_of_the_weights_changes_the_digest(folder):
    before, weights = digest(folder), folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert digest(folder) != before


async def test_the_digest_is_unknown_while_engines_differ():
    engines = EngineSet("tiny", ServiceMetrics(), router_id="r", on_trace=lambda name, events: None)
    seen = []
    for number, weights in enumerate(("old", "old", "new")):
        predictor = HeldPredictor()
        predictor.digest = weights
        engines.add(f"engine-{number}", FakeEngineClient(), predictor.describe())
        seen.append(engines.describe().predictor.digest)
    assert seen == ["old", "old", ""]
    for number in range(2):
        engines.remove(f"engine-{number}", "it is replaced")
    assert engines.describe().predictor.digest == "new"
    await engines.close()


async def test_64_equal_items_at_once_are_one_item_of_an_engine(tokenizer):
    runner = FakeRunner()
    config = engine_config(model="fake")
    engine = AsyncEngine(assemble_engine(config, runner, lambda: runner, digest="weights"))
    engine.start()
    metrics = ServiceMetrics("r")
    dispatcher = Dispatcher("m", tokenizer, metrics, router_id="r")
    dispatcher.engines.add("engine-0", engine, engine.description)
    cache = PredictionCache(memory=MemoryCache(2**20, metrics.prediction_cache_counts()))
    cached = CachedPredictor("m", dispatcher, cache, metrics)
    runner.batches.clear()

    async def ask(number):
        async with asyncio.timeout(60.0), contextlib.aclosing(cached.generate(item_request(f"r{number}"))) as outputs:
            (output,) = [output async for output in outputs]
        return output

    try:
        outputs = await asyncio.gather(*(ask(number) for number in range(64)))
        assert sum(runner.batches) == 1
        assert {output.prediction for output in outputs} == {outputs[0].prediction}
        assert (await ask(64)).num_cached_tokens == 2
        assert (sum(runner.batches), dispatcher.num_open) == (1, 0)
    finally:
        await dispatcher.close()
        await engine.shutdown()


def test_an_engine_does_not_wake_with_other_weights_than_its_digest(folder):
    """Routers would keep results of the new weights under the digest of the old ones."""
    engine = build_predictor_engine(engine_config(model=str(folder), num_threads=1, pin_threads=False), folder)
    engine.control(Sleep(2))
    assert engine.control(Wake()) == "running"
    engine.control(Sleep(2))
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(EngineDead, match="have changed: another engine has to load them"):
        engine.control(Wake())
    engine.exit()

import asyncio
import threading

import pytest

from rayinfer.config import EngineConfig
from rayinfer.errors import ModelLoadError
from rayinfer_deployments.engine.engine_actor import EngineActor
from support.tiny_models.tiny_checkpoints import make_tiny_llama


async def test_an_engine_is_built_in_a_thread_that_ends_with_it(tmp_path):
    folder = make_tiny_llama(tmp_path)
    (folder / "model.safetensors").write_bytes(b"no weights")
    before, seen = set(threading.enumerate()), set()

    async def watch():
        while True:
            seen.update(threading.enumerate())
            await asyncio.sleep(0)

    watching = asyncio.ensure_future(watch())
    with pytest.raises(ModelLoadError, match="safetensors"):
        await EngineActor(EngineConfig(model=str(folder)), 1).start()
    watching.cancel()
    assert seen > before  # the event loop went on while the engine was built elsewhere
    assert set(threading.enumerate()) == before

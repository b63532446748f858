import asyncio
import threading

import pytest

from rayinfer.config import EngineConfig
from rayinfer.errors import ModelLoadError
from rayinfer_deployments.engine import engine_actor
from rayinfer_deployments.engine.engine_actor import EngineActor


def test_no_thread_of_the_building_stays_beside_the_engines(monkeypatch):
    builders = []

    def build(*_):
        builders.append(threading.current_thread())
        raise ModelLoadError("no such model")

    monkeypatch.setattr(
        engine_actor.importlib, "import_module", lambda name: type("Building", (), {"build_async_engine": build})
    )

    async def start():
        with pytest.raises(ModelLoadError, match="no such model"):
            await EngineActor(EngineConfig(), 1).start()
        (builder,) = builders
        assert builder is not threading.main_thread()
        assert not builder.is_alive()

    asyncio.run(start())

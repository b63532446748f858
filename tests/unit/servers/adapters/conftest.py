import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from rayinfer.errors import AdapterRefused
from rayinfer.kv_cache.adapter_id import CONFIG_FILE, WEIGHTS_FILE, content_digest
from rayinfer.protocols import LoadAdapter
from rayinfer.servers.adapters.adapter_folders import AdapterFolders
from rayinfer.servers.adapters.registry import AdapterRegistry
from rayinfer.servers.app import build_app
from support.fakes.fake_engine_client import FakeEngineClient


class ReadingEngine(FakeEngineClient):
    """An engine that reads adapters, and refuses those whose weights are 'broken'."""

    async def control(self, action):
        if not isinstance(action, LoadAdapter):
            return await super().control(action)
        return [await asyncio.to_thread(self._read, Path(action.folder))]

    def _read(self, folder: Path) -> str:
        files = [(folder / name).read_bytes() for name in (CONFIG_FILE, WEIGHTS_FILE)]
        if files[1] == b"broken":
            raise AdapterRefused("adapter_model.safetensors: tensor x.lora_A.weight has rank 128, above 64")
        return content_digest(*files)


def write_adapter(folder: Path, weights: bytes = b"weights") -> Path:
    """Write two files with the names of an adapter's."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG_FILE).write_text("{}")
    (folder / WEIGHTS_FILE).write_bytes(weights)
    return folder


@contextmanager
def pipe_in_place_of(file: Path) -> Iterator[None]:
    """Put a named pipe where a file is; in the end whoever waits for its content goes on."""
    file.unlink()
    os.mkfifo(file)
    try:
        yield
    finally:
        with suppress(OSError):  # nobody waits
            os.close(os.open(file, os.O_WRONLY | os.O_NONBLOCK))


@pytest.fixture
async def base(models):
    models["org/tiny"] = replace(models["org/tiny"], engines=ReadingEngine())
    return models["org/tiny"]


@pytest.fixture
async def registry(models, base, tmp_path) -> AdapterRegistry:
    """A registry of one model, whose operators may load what lies below `loadable`."""
    found = AdapterRegistry(models)
    modules = {"poet": str(write_adapter(tmp_path / "poet", b"poems"))}
    watched, roots = str(tmp_path / "watched"), (str(tmp_path / "loadable"),)
    found.add_base(base, AdapterFolders(base=base.name, modules=modules, watched=watched, roots=roots))
    await found.refresh()
    return found


@pytest.fixture
async def client(models, metrics, registry) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(models, metrics, adapters=registry), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client

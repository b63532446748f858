"""Adapters that cannot be read end their own requests, and no engine."""

import asyncio
import json
import struct
from dataclasses import replace

import pytest

from rayinfer.config import EngineConfig
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.errors import AdapterRefused
from rayinfer.kv_cache.adapter_id import adapter_id, folder_digest
from rayinfer.protocols import GenerationRequest, LoadAdapter
from rayinfer.sampling_params import SamplingParams
from rayinfer.wire import encode
from support.services.polling import until
from support.tiny_models.tiny_adapters import WEIGHTS, make_adapter
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def break_settings(folder):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"lora_alpha": 10**400}))


def break_type(folder):
    content = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    for entry in header.values():
        entry["dtype"] = ["F32"]
    text = json.dumps(header).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def break_header(folder):
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 200_000) + b"[" * 200_000)


def break_name(folder):
    text = b'{"x\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text)


@pytest.mark.parametrize("break_files", [break_settings, break_type, break_header, break_name])
async def test_a_broken_adapter_is_refused_and_the_engine_lives_on(tmp_path, break_files):
    model = make_tiny_llama(tmp_path / "model", hidden=32)
    folder = make_adapter(tmp_path / "adapter", model, pattern=r".*\.q_proj")
    break_files(folder)
    config = EngineConfig(model=str(model), block_size=8, num_kv_blocks=32, enable_lora=True)
    engine, ends = AsyncEngine(build_engine(config, model)), {}

    async def read():
        async for message in engine.outputs("r"):
            encode(message)
            ends.update({each.request_id: each for each in message.deltas if each.finish_reason is not None})

    engine.start()
    reading = asyncio.ensure_future(read())
    params = SamplingParams(max_tokens=2, ignore_eos=True)
    plain = GenerationRequest(request_id="plain", prompt_token_ids=[5, 6, 7], sampling_params=params)
    adapter = {"adapter": adapter_id("bad", folder_digest(folder)), "adapter_folder": str(folder)}
    await engine.submit([replace(plain, request_id="bad", **adapter)], "r")
    await until(lambda: "bad" in ends, timeout_s=20)
    assert ends["bad"].finish_reason == "error"
    assert str(folder) in ends["bad"].error
    with pytest.raises(AdapterRefused, match=str(folder)):
        await engine.control(LoadAdapter(str(folder)))
    await engine.submit([plain], "r")
    await until(lambda: "plain" in ends, timeout_s=20)
    assert (ends["plain"].finish_reason, engine.failure) == ("length", None)
    reading.cancel()
    await engine.shutdown()

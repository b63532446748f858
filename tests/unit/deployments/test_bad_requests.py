import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.router.http_server import HttpServer
from support.fakes.fake_generator import FakeGenerator
from support.faults.bad_requests import BadRequest, ask, bad_requests, good_request
from support.services.free_ports import free_port
from support.tiny_models.tiny_checkpoints import save_tokenizer

MODEL = "tiny"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ServedModel:
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(folder, 384)
    return ServedModel(
        name=MODEL,
        generator=FakeGenerator(),
        tokenizer=Tokenizer.from_folder(folder),
        chat_template=ChatTemplate.from_folder(folder),
        created=1_700_000_000,
    )


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def port(model: ServedModel) -> AsyncIterator[int]:
    port = free_port()
    server = HttpServer(build_app({MODEL: model}, ServiceMetrics()), "127.0.0.1", port)
    yield port
    await server.close(grace_s=0.0)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("bad", bad_requests(MODEL), ids=str)
async def test_a_bad_request_is_refused_and_the_next_one_answered(port: int, bad: BadRequest):
    answer = await asyncio.to_thread(ask, "127.0.0.1", port, bad.payload)
    assert answer.status == bad.status
    assert answer.error["type"] == "invalid_request_error"
    assert len(answer.body) < 2500
    assert (await asyncio.to_thread(ask, "127.0.0.1", port, good_request(MODEL))).status == 200

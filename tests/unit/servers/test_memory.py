"""Memory of a process that gets the bad inputs of every protocol over and over."""

import gc
import inspect
import itertools
import os
from pathlib import Path

import grpc
import httpx
import pytest

from rayinfer.servers.app import build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.example_models import example_models
from rayinfer.servers.kserve.grpc.server import GrpcLimits, GrpcServer
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from unit.servers.kserve.grpc import test_infer_calls as grpc_table
from unit.servers.kserve.grpc.conftest import Stub
from unit.servers.kserve.rest import test_bad_inputs as kserve_table
from unit.servers.megatron import test_bad_inputs as megatron_table
from unit.servers.openai import test_bad_inputs as openai_table
from unit.servers.tgi import test_bad_inputs as tgi_table

MAX_BODY_BYTES = 200_000
NUM_ROUNDS = 10
LIMIT_MIB = 32

TABLES = (openai_table, tgi_table, megatron_table, kserve_table)
TESTS = [
    *(test for table in TABLES for name, test in vars(table).items() if name.startswith("test_")),
    grpc_table.test_bad_requests_have_their_statuses_and_harm_nothing,
    grpc_table.test_a_message_that_grows_beyond_the_bound_is_refused,
]


@pytest.fixture
async def targets(models, metrics, generator):
    """A service with every protocol, as the arguments that the tables' tests name; it keeps no traces."""
    kserve = InferenceService(GenerationService(models, None, None), ModelRepository(models, example_models()))
    app = build_app(models, metrics, max_body_bytes=MAX_BODY_BYTES, kserve=kserve)
    server = GrpcServer(kserve, metrics, "127.0.0.1", 0, limits=GrpcLimits(max_message_bytes=MAX_BODY_BYTES))
    await server.start()
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        httpx.AsyncClient(transport=transport, base_url="http://service") as client,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel,
    ):
        yield {"client": client, "generator": generator, "stub": Stub(channel)}
    await server.close(0)


async def test_bad_inputs_of_every_protocol_leave_no_object_behind(targets):
    await run_tables(targets)
    before = count_objects()
    for _ in range(2):
        await run_tables(targets)
    assert count_objects() - before < 100


@pytest.mark.faults
async def test_ten_rounds_of_bad_inputs_leave_little_memory_behind(targets):
    await run_tables(targets)
    before = resident_mib()
    for _ in range(NUM_ROUNDS):
        await run_tables(targets)
    assert resident_mib() - before < LIMIT_MIB


async def run_tables(targets):
    """Run every case of every table once."""
    cases = [(test, arguments) for test in TESTS if inspect.iscoroutinefunction(test) for arguments in cases_of(test)]
    assert len(cases) >= 50
    generator = targets["generator"]
    for test, arguments in cases:
        for kept in (generator.requests, generator.finished, generator.aborted):
            kept.clear()
        wanted = inspect.signature(test).parameters
        await test(**arguments, **{name: value for name, value in targets.items() if name in wanted})


def cases_of(test):
    """Return the arguments of each of a test's parametrized cases."""
    marks = [mark.args for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    named = [([names] if isinstance(names, str) else list(names), list(rows)) for names, rows in marks]
    for rows in itertools.product(*(rows for _, rows in named)):
        arguments = {}
        for (names, _), row in zip(named, rows, strict=True):
            arguments |= zip(names, [row] if len(names) == 1 else row, strict=True)
        yield arguments


def count_objects():
    gc.collect()
    return len(gc.get_objects())


def resident_mib():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

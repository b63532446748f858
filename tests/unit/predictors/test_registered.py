import httpx
import numpy as np
import pytest
import torch

from rayinfer import Predictor, register_predictor
from rayinfer.config import engine_config
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.errors import ConfigError, InvalidParameter, ModelLoadError, RequestFailed
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.predictors.build_engine import build_predictor_engine
from rayinfer.predictors.registered import unregister_predictor
from rayinfer.protocols import TensorSpec
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.tokenization.chat_template import ChatTemplate

INPUTS = [TensorSpec(name="x", datatype="FP32", shape=(-1, 3))]
OUTPUTS = [TensorSpec(name="sum", datatype="FP32", shape=(-1,)), TensorSpec(name="count", datatype="INT64", shape=())]


class Sum(torch.nn.Module):
    def forward(self, x):
        return {"sum": x.sum(-1), "count": len(x)}


@pytest.fixture
def register(build):
    names = []

    def registered(factory, outputs=OUTPUTS, name="sums"):
        names.append(name)
        return register_predictor(name, factory, inputs=INPUTS, outputs=outputs)

    yield registered
    for name in names:
        unregister_predictor(name)


def test_a_module_computes_named_tensors(register):
    register(Sum)
    with Predictor("sums") as predictor:
        result = predictor.predict({"x": np.ones((2, 3), dtype=np.float32)})
        assert result["sum"].tolist() == [3, 3]
        assert result["count"].tolist() == 2
        assert predictor.description.tasks == ("infer",)
        assert len(predictor.predict_batch([{"x": np.ones((n, 3), dtype=np.float32)} for n in (1, 2)])) == 2


def test_a_function_may_return_its_tensors_in_order(register):
    register(lambda: lambda x: (x.sum(-1), len(x)))
    with Predictor("sums") as predictor:
        assert predictor.predict({"x": np.zeros((4, 3), dtype=np.float32)})["count"] == 4


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (None, "tensors by name"),
        ({}, r"inputs are \[\], expected \['x'\]"),
        ({"x": np.ones((2, 4), dtype=np.float32)}, r"shape \[2, 4\], expected \[-1, 3\]"),
        ({"x": np.ones((2, 3))}, "float64, expected FP32"),
        ({"x": np.full((2, 3), np.nan, dtype=np.float32)}, "not finite"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(tensors, message, register):
    register(Sum)
    with Predictor("sums") as predictor, pytest.raises(InvalidParameter, match=message):
        predictor.predict(tensors)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x, "returned 1 tensors, expected 2"),
        (lambda x: {"sum": x.sum(-1)}, "returned no count"),
        (lambda x: (x, 1), r"output 'sum' has shape \[2, 3\]"),
        (lambda x: (x.sum(-1) / 0, 1), "not finite"),
    ],
)
def test_results_that_do_not_fit_are_an_error(call, message, register):
    register(lambda: call)
    with Predictor("sums") as predictor, pytest.raises(RequestFailed, match=message):
        predictor.predict({"x": np.ones((2, 3), dtype=np.float32)})


def test_a_factory_that_fails_is_named(register):
    register(lambda: 1 / 0)
    with pytest.raises(ModelLoadError, match="'sums' cannot be built: ZeroDivisionError"):
        Predictor("sums")


def test_a_name_is_registered_once_and_with_a_schema(register):
    register(Sum)
    with pytest.raises(ConfigError, match="in use"):
        register(Sum)
    with pytest.raises(ConfigError, match="in use"):
        register(Sum, name="LlamaForCausalLM")
    with pytest.raises(ConfigError, match="datatype 'BYTES'"):
        register(Sum, [TensorSpec(name="a", datatype="BYTES")], name="other")
    with pytest.raises(ConfigError, match="names of their own"):
        register(Sum, [OUTPUTS[0], OUTPUTS[0]], name="other")


async def test_a_registered_predictor_answers_both_kserve_protocols(register, tokenizer):
    register(lambda: lambda x: {"sum": x.sum(-1)}, OUTPUTS[:1])
    engine = AsyncEngine(build_predictor_engine(engine_config(model="sums", num_threads=1), None))
    metrics = ServiceMetrics()
    dispatcher = Dispatcher("sums", tokenizer, metrics, router_id="r")
    engine.start()
    dispatcher.engines.add("engine", engine, engine.description)
    model = ServedModel(
        name="sums", generator=dispatcher, tokenizer=tokenizer, chat_template=ChatTemplate({}, {}), created=0
    )
    transport = httpx.ASGITransport(build_app({"sums": model}, metrics), raise_app_exceptions=False)
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    x = {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": rows}
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
            described = (await client.get("/v2/models/sums")).json()
            assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]
            assert described["outputs"] == [{"name": "sum", "datatype": "FP32", "shape": [-1]}]
            (output,) = (await client.post("/v2/models/sums/infer", json={"inputs": [x]})).json()["outputs"]
            assert (output["name"], output["data"]) == ("sum", [6.0, 15.0])
            for instances in (rows, [{"x": row} for row in rows]):
                answer = await client.post("/v1/models/sums:predict", json={"instances": instances})
                assert answer.json() == {"predictions": [6.0, 15.0]}
            for wrong in ([[1.0]], [{"y": rows[0]}], [[1.0], [2.0, 3.0]], ["a"]):
                refused = await client.post("/v1/models/sums:predict", json={"instances": wrong})
                assert (refused.status_code // 100, set(refused.json())) == (4, {"error"}), refused.text
    finally:
        await dispatcher.close()
        await engine.shutdown()

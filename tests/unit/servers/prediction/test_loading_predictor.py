"""A predictor without an engine yet, beside others that answer."""

from dataclasses import replace

import grpc
import pytest

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.routing.dispatch import Dispatcher
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.methods import SERVICE
from rayinfer.servers.kserve.grpc.server import GrpcLimits, GrpcServer

TENSOR = {"name": "text", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
REQUESTS = [
    ("/v1/embeddings", {"model": "{}", "input": "hi"}),
    ("/pooling", {"model": "{}", "input": "hi", "task": "embed"}),
    ("/score", {"model": "{}", "text_1": "hi", "text_2": "ho"}),
    ("/models/{}/embed", {"inputs": "hi"}),
    ("/models/{}/similarity", {"inputs": {"source_sentence": "hi", "sentences": ["ho"]}}),
    ("/v2/models/{}/infer", {"inputs": [TENSOR]}),
    ("/v1/models/{}:predict", {"instances": ["hi"]}),
]


@pytest.fixture
async def loading(predictors):
    """An embedding model without an engine."""
    dispatcher = Dispatcher("loading", predictors.tokenizer, ServiceMetrics(), router_id="r", engine_wait_s=0.0)
    predictors.models["loading"] = replace(predictors.models["embedder"], name="loading", generator=dispatcher)
    yield dispatcher
    await dispatcher.close()


@pytest.mark.parametrize(("path", "body"), REQUESTS)
async def test_a_loading_predictor_is_unavailable_for_itself_only(client, loading, path, body):
    for name, status in (("loading", 503), ("embedder", 200)):
        named = body | ({"model": name} if "model" in body else {})
        response = await client.post(path.format(name), json=named)
        assert response.status_code == status, response.text
        assert ("retry-after" in response.headers) == (status == 503)


async def test_a_loading_predictor_is_unavailable_over_grpc(predictors, loading):
    server = GrpcServer(
        predictors.kserve, ServiceMetrics(), "127.0.0.1", 0, limits=GrpcLimits(max_message_bytes=100_000)
    )
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        infer = channel.unary_unary(
            f"/{SERVICE.full_name}/ModelInfer",
            pb.ModelInferRequest.SerializeToString,
            pb.ModelInferResponse.FromString,
        )
        message = pb.ModelInferRequest(model_name="loading")
        message.inputs.add(name="text", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"hi")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await infer(message)
        message.model_name = "embedder"
        assert (await infer(message)).outputs[0].name == "embedding"
    await server.close(0)
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
    assert int(dict(caught.value.trailing_metadata())["retry-after"]) > 0

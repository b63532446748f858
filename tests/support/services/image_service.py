"""An image classifier's own engine behind an application, and an image's probabilities by each of its protocols."""

import base64
import contextlib
import json
import struct

import httpx
import numpy as np

from rayinfer.config import engine_config
from rayinfer.engine.loop.async_engine import AsyncEngine
from rayinfer.liveness import LivenessLimits
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.predictors.build_engine import build_predictor_engine
from rayinfer.servers.app import build_app
from rayinfer.servers.caller import ANYONE, RequestContext, RequestIdentity
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.infer_messages import read_infer_message, write_infer_result
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.kserve.tensors.tensor_json import MAX_JSON_ELEMENTS
from rayinfer.servers.prediction.image_classification import IMAGE_PATH
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.traces.trace_store import TraceStore
from support.fakes.fake_predictor import served_predictor

INFER = "/v2/models/images/infer"


@contextlib.asynccontextmanager
async def service_of(folder, tokenizer, **settings):
    """The application with a classifier's own engine behind a dispatcher, and the inferences of its gRPC service."""
    engine = AsyncEngine(
        build_predictor_engine(engine_config(model=str(folder), num_threads=1, pin_threads=False), folder),
        limits=LivenessLimits(loop_heartbeat_s=0.02),
    )
    engine.start()
    model, dispatcher = served_predictor("images", engine, tokenizer, ChatTemplate({}))
    models = {"images": model}
    kserve = InferenceService(GenerationService(models, None, TraceStore()), ModelRepository(models))
    app = build_app(models, ServiceMetrics(), kserve=kserve, **settings)
    try:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service") as client:
            yield client, kserve
    finally:
        await dispatcher.close()
        await engine.shutdown()


async def by_json(client, name, datatype, array):
    """Infer by a tensor of JSON; binary data would need another body."""
    tensor = {"name": name, "shape": list(array.shape), "datatype": datatype, "data": array.reshape(-1).tolist()}
    response = await client.post(INFER, json={"inputs": [tensor]})
    assert response.status_code == 200, response.text
    outputs = {each["name"]: each for each in response.json()["outputs"]}
    return np.reshape(outputs["probabilities"]["data"], outputs["probabilities"]["shape"])


async def by_binary(client, name, datatype, shape, raw):
    tensor = {"name": name, "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": len(raw)}}
    head = json.dumps({"inputs": [tensor], "outputs": [{"name": "probabilities"}]}).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    response = await client.post(INFER, content=head + raw, headers=headers)
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    return np.reshape(output["data"], output["shape"])


async def by_grpc(kserve, name, datatype, shape, raw):
    message = pb.ModelInferRequest(model_name="images", raw_input_contents=[raw])
    message.inputs.add(name=name, datatype=datatype, shape=shape)
    asked = read_infer_message(message, None)
    inference = kserve.check(kserve.repository.find_ready(ANYONE, "images"), asked.request, 0)
    response = write_infer_result(
        await kserve.infer(RequestContext(RequestIdentity(), ANYONE), inference), is_raw=False
    )
    return np.reshape(response.outputs[0].contents.fp32_contents, response.outputs[0].shape)


async def by_every_protocol(client, kserve, encoded, pixels, numbers):
    """Return probabilities [num_images, num_labels] of an image by the way that it is sent.

    It comes as a file, as `pixels` uint8 [height, width, 3] and as `numbers` float32 [3, height, width].
    """
    text, element = base64.b64encode(encoded).decode(), struct.pack("<I", len(encoded)) + encoded
    v1 = await client.post("/v1/models/images:predict", json={"instances": [{"image": {"b64": text}}]})
    tensor = {"name": "image", "shape": [1], "datatype": "BYTES", "data": [text]}
    v2 = await client.post(INFER, json={"inputs": [tensor]})
    found = {
        "v1": np.array([v1.json()["predictions"][0]["probabilities"]]),
        "JSON, encoded": np.array([v2.json()["outputs"][0]["data"]]),
        "JSON, normalized": await by_json(client, "pixels", "FP32", numbers),
    }
    if pixels.size <= MAX_JSON_ELEMENTS:
        found["JSON, bytes"] = await by_json(client, "pixels", "UINT8", pixels)
    for name, datatype, shape, raw in (
        ("image", "BYTES", [1], element),
        ("pixels", "UINT8", pixels.shape, pixels.tobytes()),
        ("pixels", "UINT8", (3, *pixels.shape), 3 * pixels.tobytes()),
        ("pixels", "FP32", numbers.shape, numbers.tobytes()),
        ("pixels", "FP32", (2, *numbers.shape), 2 * numbers.tobytes()),
    ):
        found[f"binary, {datatype} {list(shape)}"] = await by_binary(client, name, datatype, shape, raw)
        found[f"gRPC, {datatype} {list(shape)}"] = await by_grpc(kserve, name, datatype, shape, raw)
    return found


async def best_by_images_path(client, encoded):
    """Return the likeliest label and its score of POST /v1/images/classify."""
    response = await client.post(IMAGE_PATH, content=encoded, headers={"content-type": "image/png"})
    assert response.status_code == 200, response.text
    return response.json()["data"][0]["predictions"][0]

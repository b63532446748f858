"""Predictors over KServe's REST protocols: metadata, tensors of each kind and classes."""

import base64

import numpy as np
import pytest

from rayinfer.servers.caller import ANYONE, RequestContext
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.infer_messages import read_infer_message, write_infer_result
from rayinfer.servers.kserve.inference import PredictionInference
from rayinfer.servers.request_boundary import RequestIdentity
from support.fakes.fake_predictor import LABELS, vector_of
from tests.unit.servers.prediction.test_images import png

TEXTS = ["one two three", "The quick brown fox"]


def tensor(name, data, shape=None, datatype="BYTES"):
    return {"name": name, "datatype": datatype, "shape": shape or [len(data)], "data": data}


async def infer(client, model, *inputs, **fields):
    response = await client.post(f"/v2/models/{model}/infer", json={"inputs": inputs, **fields})
    assert response.status_code == 200, response.text
    return {each["name"]: each for each in response.json()["outputs"]}


@pytest.mark.parametrize(
    ("model", "inputs", "outputs"),
    [
        ("embedder", [("text", "BYTES", [-1])], [("embedding", "FP32", [-1, 8])]),
        (
            "classifier",
            [("text", "BYTES", [-1])],
            [("probabilities", "FP32", [-1, 3]), ("label", "BYTES", [-1]), ("score", "FP32", [-1])],
        ),
        ("reranker", [("text_pairs", "BYTES", [-1, 2])], [("score", "FP32", [-1])]),
        (
            "images",
            [("image", "BYTES", [-1])],
            [("probabilities", "FP32", [-1, 2]), ("label", "BYTES", [-1]), ("score", "FP32", [-1])],
        ),
    ],
)
async def test_metadata_has_the_tensors_of_the_task(client, model, inputs, outputs):
    metadata = (await client.get(f"/v2/models/{model}")).json()
    assert [tuple(each.values()) for each in metadata["inputs"]] == inputs
    assert [tuple(each.values()) for each in metadata["outputs"]] == outputs
    assert (await client.get(f"/v2/models/{model}/ready")).status_code == 200
    config = (await client.get(f"/v2/models/{model}/config")).json()
    assert config["model_transaction_policy"] == {"decoupled": False}


@pytest.mark.parametrize("shape", [[2], [2, 1]])
async def test_texts_become_embeddings(client, predictors, shape):
    outputs = await infer(
        client,
        "embedder",
        tensor("text", TEXTS, shape),
        parameters={"normalize": False, "dimensions": 4, "priority": 2},
    )
    wanted = [vector_of(predictors.tokenizer.encode(text), 8)[:4] for text in TEXTS]
    np.testing.assert_array_equal(np.reshape(outputs["embedding"]["data"], outputs["embedding"]["shape"]), wanted)
    assert predictors.engines["embedder"].submitted[-1].priority == 2


async def test_texts_and_pairs_are_classified_and_scored(client, predictors):
    outputs = await infer(client, "classifier", tensor("text", TEXTS))
    probabilities = np.reshape(outputs["probabilities"]["data"], (2, 3))
    np.testing.assert_allclose(probabilities.sum(-1), 1, rtol=1e-5)
    assert outputs["label"]["data"] == [LABELS[index] for index in probabilities.argmax(-1)]
    np.testing.assert_allclose(outputs["score"]["data"], probabilities.max(-1))
    wanted = [{"name": "probabilities", "parameters": {"classification": 2}}]
    classes = await infer(client, "classifier", tensor("text", TEXTS[:1]), outputs=wanted)
    assert [each.split(":")[2] for each in classes["probabilities"]["data"]] == [
        LABELS[index] for index in np.argsort(-probabilities[0])[:2]
    ]
    scores = await infer(client, "reranker", tensor("text_pairs", ["one", "one", "one", "two"], [2, 2]))
    assert scores["score"]["data"][0] > scores["score"]["data"][1]


async def test_images_come_encoded_or_as_pixels(client, predictors):
    encoded = base64.b64encode(png(4, 4)).decode()
    predicted = await client.post("/v1/models/images:predict", json={"instances": [{"image": {"b64": encoded}}]})
    assert predicted.json()["predictions"][0]["label"] in ("cat", "dog")
    assert predictors.engines["images"].submitted[-1].prediction.image == png(4, 4)
    await infer(client, "images", tensor("pixels", [0] * 24, [2, 2, 2, 3], "UINT8"))
    assert len(predictors.engines["images"].submitted[-1].prediction.tensors) > 12
    assert predictors.engines["images"].submitted[-1].num_input_tokens == 196


@pytest.mark.parametrize(
    ("model", "instances"),
    [
        ("embedder", ["one", {"text": "two"}]),
        ("classifier", ["one", {"text": "two"}]),
        ("reranker", [["one", "two"], {"text": "one", "text_pair": "two"}]),
    ],
)
async def test_v1_takes_instances_of_each_kind(client, model, instances):
    response = await client.post(f"/v1/models/{model}:predict", json={"instances": instances})
    assert response.status_code == 200, response.text
    assert len(response.json()["predictions"]) == 2


async def test_a_grpc_message_is_the_same_inference(predictors):
    message = pb.ModelInferRequest(model_name="embedder")
    entry = message.inputs.add(name="text", datatype="BYTES", shape=[2])
    entry.contents.bytes_contents.extend(text.encode() for text in TEXTS)
    asked = read_infer_message(message, None)
    kserve = predictors.kserve
    inference = kserve.check(kserve.repository.find_ready(ANYONE, "embedder"), asked.request, 0)
    assert isinstance(inference, PredictionInference)
    result = await kserve.infer(RequestContext(RequestIdentity(), ANYONE), inference)
    response = write_infer_result(result, is_raw=False)
    assert list(response.outputs[0].shape) == [2, 8]
    assert response.outputs[0].contents.fp32_contents[0] > 0

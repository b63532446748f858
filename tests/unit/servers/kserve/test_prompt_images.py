"""Images beside the text of an inference request, as files and as pixels, over REST and gRPC."""

import base64
import io
import re
import struct
from dataclasses import replace

import httpx
import numpy as np
import pytest
from PIL import Image

from rayinfer.images.png import encode_png
from rayinfer.images.prompts import TiledPrompts
from rayinfer.images.shapes import TiledShape
from rayinfer.servers.app import build_app
from rayinfer.servers.caller import ANYONE
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.infer_messages import read_infer_message
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from support.tiny_models.tiny_vision import encoded, picture_of

PICTURE = picture_of(40, 30)
PIXELS = np.asarray(PICTURE)
TEXT = "What is <image> this?"
INFER = "/v2/models/vision/infer"


@pytest.fixture
def served(models, generator):
    generator.takes_images = True
    prompts = TiledPrompts(shape=TiledShape(tile_side=24, longest_edge=24), tokens_per_tile=1)
    return {"vision": replace(models["org/tiny"], name="vision", image_prompts=prompts)}


@pytest.fixture
def kserve(served):
    return InferenceService(GenerationService(served, None, None), ModelRepository(served))


@pytest.fixture
async def client(served, kserve, metrics):
    transport = httpx.ASGITransport(build_app(served, metrics, kserve=kserve))
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        yield client


def body(*tensors, text=TEXT):
    inputs = [{"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [text]}]
    for name, datatype, shape, data in tensors:
        inputs.append({"name": name, "datatype": datatype, "shape": list(shape), "data": data})
    return {"inputs": inputs, "parameters": {"max_tokens": 3}}


def image(*files):
    return "image", "BYTES", [len(files)], [base64.b64encode(each).decode() for each in files]


def pixels(array, datatype="UINT8"):
    return "pixels", datatype, array.shape, array.flatten().tolist()


def seen_by_the_model(generator):
    """The images of the only request, decoded."""
    (request,) = generator.requests
    return [np.asarray(Image.open(io.BytesIO(each.content)).convert("RGB")) for each in request.images]


@pytest.mark.parametrize(
    "tensor", [image(encoded(PICTURE)), pixels(PIXELS), pixels(PIXELS[np.newaxis])], ids=["file", "pixels", "batch"]
)
async def test_an_image_reaches_the_model_over_rest(client, generator, tensor):
    response = await client.post(INFER, json=body(tensor))
    assert response.status_code == 200, response.text
    (output,) = response.json()["outputs"]
    assert output["data"] == ["Hello there!"]
    (found,) = seen_by_the_model(generator)
    assert np.array_equal(found, PIXELS)


async def test_several_images_keep_their_order(client, generator):
    other = 255 - PIXELS
    response = await client.post(INFER, json=body(pixels(np.stack((other, PIXELS))), text="<image> and <image>"))
    assert response.status_code == 200, response.text
    assert np.array_equal(seen_by_the_model(generator), [other, PIXELS])


@pytest.mark.parametrize("kind", ["file", "pixels"])
def test_an_image_reaches_the_model_over_grpc(kserve, kind):
    def element(content):
        return struct.pack("<I", len(content)) + content

    message = pb.ModelInferRequest(model_name="vision", raw_input_contents=[element(TEXT.encode())])
    message.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    if kind == "file":
        message.inputs.add(name="image", datatype="BYTES", shape=[1])
        message.raw_input_contents.append(element(encoded(PICTURE)))
    else:
        message.inputs.add(name="pixels", datatype="UINT8", shape=PIXELS.shape)
        message.raw_input_contents.append(PIXELS.tobytes())
    request = read_infer_message(message, None).request
    checked = kserve.check(kserve.repository.find_ready(ANYONE, "vision"), request, 0)
    (found,) = checked.request.generation.images
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(found.content)).convert("RGB")), PIXELS)


REFUSED = {
    "no marker": (body(pixels(PIXELS), text="What?"), "0 times, for 1 images"),
    "a marker too many": (body(pixels(PIXELS), text="<image><image>"), "2 times, for 1 images"),
    "both": (body(image(encoded(PICTURE)), pixels(PIXELS)), "not both"),
    "no image": (body(image(b"<svg/>")), "JPEG, PNG or WebP"),
    "gray": (body(pixels(PIXELS[..., :1])), r"\[height, width, 3\]"),
    "numbers": (body(pixels(PIXELS.astype(np.float32), "FP32")), "must have the datatype UINT8"),
    "nine": (body(image(*[encoded(PICTURE)] * 9)), "8 images, got 9"),
    "a bomb": (body(image(encode_png(PIXELS)[:16] + struct.pack(">II", 10**6, 10**6))), "8192 pixels a side"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_wrong_images_get_400(client, generator, name):
    asked, message = REFUSED[name]
    response = await client.post(INFER, json=asked)
    assert response.status_code == 400
    assert re.search(message, response.json()["error"]), response.text
    assert not generator.requests


async def test_images_beside_several_texts_are_refused(client):
    asked = body(pixels(PIXELS))
    asked["inputs"][0] |= {"shape": [2], "data": [TEXT, TEXT]}
    response = await client.post(INFER, json=asked)
    assert (response.status_code, "one text beside images, got 2" in response.text) == (400, True)


async def test_a_model_describes_the_images_that_it_reads(client, generator):
    def names(found):
        return [each["name"] for each in found["inputs"]]

    assert names((await client.get("/v2/models/vision")).json())[-2:] == ["image", "pixels"]
    config = (await client.get("/v2/models/vision/config")).json()
    assert {each["name"]: each["optional"] for each in config["input"]}["pixels"]
    generator.takes_images = False
    assert "image" not in names((await client.get("/v2/models/vision")).json())
    response = await client.post(INFER, json=body(image(encoded(PICTURE))))
    assert (response.status_code, "has no input 'image'" in response.text) == (400, True)

"""Images over `POST /v1/images/classify`: raw, in forms and in JSON; the fake engine decodes none."""

import base64
import struct
import zlib

import httpx
import huggingface_hub
import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.images.headers import ImageSize, read_image_size
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import build_app
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.kserve.repository import ModelRepository
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.traces.trace_store import TraceStore

PATH = "/v1/images/classify"


def png(width, height):
    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b"\0" * 16))
        + chunk(b"IEND", b"")
    )


def jpeg(width, height):
    return (
        b"\xff\xd8\xff\xe0\x00\x10JFIF" + b"\0" * 10
        + b"\xff\xc0\x00\x11\x08" + struct.pack(">HH", height, width) + b"\x03" + b"\0" * 9
        + b"\xff\xd9"
    )  # fmt: skip


def webp(width, height):
    body = b"WEBPVP8X\x0a\0\0\0" + b"\0" * 4 + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", len(body)) + body


def coded(image):
    return base64.b64encode(image).decode()


@pytest.mark.parametrize("make", [png, jpeg, webp])
def test_sizes_are_read_of_headers_alone(make):
    image = make(300, 20)
    assert read_image_size(image, "image") == ImageSize(300, 20)
    for length in range(len(make(1, 1)[:24])):
        with pytest.raises(InvalidParameter):
            read_image_size(image[:length], "image")


KINDS = [
    ("image/png", png(9, 9)),
    ("image/jpeg", jpeg(9, 9)),
    ("image/webp", webp(9, 9)),
    ("image/*", png(8, 9)),
    ("application/octet-stream", png(9, 8)),
]


@pytest.mark.parametrize(("kind", "image"), KINDS)
async def test_an_image_is_the_body(client, predictors, kind, image):
    answer = await client.post(PATH + "?top_k=1", content=image, headers={"content-type": kind})
    assert answer.status_code == 200, answer.text
    (each,) = answer.json()["data"]
    assert each["predictions"][0]["label"] in ("cat", "dog")
    assert len(each["predictions"]) == 1
    assert predictors.engines["images"].submitted[-1].prediction.image == image
    assert answer.json()["usage"]["prompt_tokens"] == 196


async def test_images_come_in_forms_and_in_json(client, predictors):
    images = [png(1, 1), b"\xff" + jpeg(2, 2)[1:]]
    form = await client.post(PATH, files=[("image", image) for image in images], data={"model": "images", "top_k": "2"})
    body = await client.post(PATH, json={"images": [coded(images[0]), "data:image/jpeg;base64," + coded(images[1])]})
    assert (form.status_code, body.status_code) == (200, 200), form.text + body.text
    assert form.json()["data"] == body.json()["data"]
    assert {request.prediction.image for request in predictors.engines["images"].submitted} == set(images)
    single = await client.post(PATH, json={"image": coded(images[0])})
    assert single.json()["data"][0] == body.json()["data"][0]


PNG = coded(png(2, 2))
JSON = [
    ({}, 400),
    ({"image": PNG, "images": [PNG]}, 400),
    ({"image": "https://example.com/cat.png"}, 400),
    ({"image": "http://169.254.169.254/"}, 400),
    ({"image": "file:///etc/passwd"}, 400),
    ({"image": "data:image/png,abc"}, 400),
    ({"image": "%%%"}, 400),
    ({"image": ""}, 400),
    ({"image": 5}, 400),
    ({"images": []}, 400),
    ({"images": [PNG] * 4}, 400),
    ({"images": [None]}, 400),
    ({"image": coded(b"GIF89a" + b"\0" * 20)}, 400),
    ({"image": coded(png(8193, 1))}, 400),
    ({"image": coded(png(8000, 8000))}, 400),
    ({"image": coded(png(0, 5))}, 400),
    ({"image": coded(png(2, 2) + b"\0" * 50_000)}, 400),
    ({"image": PNG, "top_k": 0}, 400),
    ({"image": PNG, "top_k": "2"}, 400),
    ({"image": PNG, "model": "none"}, 404),
    ({"image": PNG, "model": "classifier"}, 404),
    ({"image": PNG, "model": "org/tiny"}, 404),
]


@pytest.mark.parametrize(("body", "status"), JSON)
async def test_bad_images_are_refused_before_anything_is_decoded(client, predictors, body, status):
    response = await client.post(PATH, json=body)
    assert (response.status_code, set(response.json())) == (status, {"error"}), response.text
    if "http" in str(body.get("image")):
        assert "not fetched from URLs" in response.text
    assert not predictors.engines["images"].submitted
    assert (await client.post(PATH, json={"image": PNG})).status_code == 200


@pytest.mark.parametrize(
    ("content", "content_type", "status"),
    [
        (b"GIF89a" + bytes(20), "image/gif", 400),
        (b"GIF89a" + bytes(20), "application/x-www-form-urlencoded", 415),
        (png(2, 2), "text/plain", 415),
        (b"", "image/png", 400),
        (b"no image", "image/png", 400),
        (b"", "multipart/form-data", 400),
        (b"", "multipart/form-data; boundary=x", 400),
        (b"--x\r\n\r\n--x--", "multipart/form-data; boundary=x", 400),
        (b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\nb\r\n--x--', "multipart/form-data; boundary=x", 400),
        (b"--x\r\n" * 100, "multipart/form-data; boundary=x", 400),
    ],
)
async def test_bad_bodies_are_refused(client, content, content_type, status):
    response = await client.post(PATH, content=content, headers={"content-type": content_type})
    assert response.status_code == status, response.text
    assert (await client.post(PATH, content=png(2, 2), headers={"content-type": "image/png"})).status_code == 200


async def test_paths_of_images_take_the_largest_images_in_base64_and_others_do_not(predictors):
    models, limits = predictors.models, RequestLimits(max_images=2, max_image_bytes=600_000)
    kserve = InferenceService(GenerationService(models, None, TraceStore(), limits), ModelRepository(models))
    app = build_app(models, ServiceMetrics(), max_body_bytes=400_000, kserve=kserve)
    large = png(4, 4)[:-12] + bytes(590_000)  # only its header is read here
    v2 = {"inputs": [{"name": "image", "shape": [2], "datatype": "BYTES", "data": [coded(large)] * 2}]}
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as client:
        for path, body in (
            (PATH, {"images": [coded(large)] * 2}),
            ("/v2/models/images/infer", v2),
            ("/v1/models/images:predict", {"instances": [{"b64": coded(large)}] * 2}),
        ):
            answer = await client.post(path, json=body)
            assert answer.status_code == 200, answer.text
            assert (await client.post(path, content=bytes(1_800_000))).status_code == 413
        assert (await client.post("/v1/embeddings", content=bytes(500_000))).status_code == 413
        del models["images"]
        assert (await client.post(PATH, json={"images": [coded(large)] * 2})).status_code == 413


async def test_a_body_of_another_kind_names_the_kinds_that_are_taken(client):
    answer = await client.post(PATH, content=png(2, 2), headers={"content-type": "text/plain"})
    assert (answer.status_code, "application/octet-stream for an image" in answer.text) == (415, True), answer.text
    answer = await client.post(PATH, content=b"GIF89a")
    assert (answer.status_code, "an image, JPEG, PNG or WebP" in answer.text) == (400, True), answer.text
    assert (await client.post(PATH, content=b' {"image": "%s"}' % PNG.encode())).status_code == 200


async def test_the_image_at_fault_is_named(client):
    form = await client.post(PATH, files=[("image", png(2, 2)), ("image", b"no image")])
    v2 = {"inputs": [{"name": "image", "shape": [2], "datatype": "BYTES", "data": [PNG, "no image"]}]}
    infer = await client.post("/v2/models/images/infer", json=v2)
    assert (form.status_code, form.json()["error"]["param"]) == (400, "images.1")
    assert (infer.status_code, "image.1 is not valid base64" in infer.text) == (400, True), infer.text


async def test_a_model_of_images_has_no_tokens(client):
    cards = {card["id"]: card["max_model_len"] for card in (await client.get("/v1/models")).json()["data"]}
    assert (cards["images"], cards["embedder"] > 1) == (None, True)
    for path, body in (
        ("/tokenize", {"model": "images", "prompt": "a"}),
        ("/detokenize", {"model": "images", "tokens": [1]}),
        ("/models/images/tokenize", {"inputs": "a"}),
        ("/models/images/decode", {"ids": [1]}),
    ):
        answer = await client.post(path, json=body)
        assert (answer.status_code // 100, "takes images and no texts" in answer.text) == (4, True), answer.text


async def test_a_list_of_texts_is_tokenized_by_the_model_that_predicts(predictors, client):
    for name in ("classifier", "reranker", "tagger"):
        del predictors.models[name]
    answer = await client.post("/tokenize", json={"inputs": ["one", "two"]})
    assert (answer.status_code, len(answer.json())) == (200, 2), answer.text


@pytest.mark.parametrize("path", [PATH, "/", "/models/images"])
@pytest.mark.parametrize("content_type", [None, "application/x-www-form-urlencoded", "image/png"])
async def test_an_image_whose_kind_no_header_names_is_known_by_its_bytes(client, path, content_type):
    headers = {} if content_type is None else {"content-type": content_type}
    answer = await client.post(path, content=png(7, 7), headers=headers)
    assert answer.status_code == 200, answer.text
    found = answer.json()["data"][0]["predictions"] if path == PATH else answer.json()
    assert [set(each) for each in found] == [{"label", "score"}] * 2


async def test_the_root_is_the_hubs_pipeline_of_images(client, predictors):
    image = jpeg(9, 9)
    raw = (await client.post("/", content=image)).json()
    assert [each["score"] for each in raw] == sorted((each["score"] for each in raw), reverse=True)
    assert sum(each["score"] for each in raw) == pytest.approx(1)
    predictors.models |= {"images2": predictors.models.pop("images")}
    assert (await client.post("/models/images2", json={"inputs": coded(image)})).json() == raw
    best = await client.post("/models/images2", json={"inputs": coded(image), "parameters": {"top_k": 1}})
    assert best.json() == raw[:1]
    logits = await client.post(
        "/models/images2", json={"inputs": coded(image), "parameters": {"function_to_apply": "none"}}
    )
    assert sum(each["score"] for each in logits.json()) > 1.5
    for body in ({"inputs": "%%%"}, {"inputs": coded(image), "parameters": {"top_k": 0}}, {"inputs": 5}):
        refused = await client.post("/models/images2", json=body)
        assert (refused.status_code, set(refused.json())) == (422, {"error", "error_type"}), refused.text
    refused = await client.post("/models/embedder", content=image)
    assert (refused.status_code, "classification of images" in refused.text) == (404, True), refused.text


async def test_the_root_takes_images_as_large_as_those_of_their_own_path(client):
    image = png(2, 2)
    large = image[:-12] + bytes(50_000 - len(image))
    assert (await client.post("/models/images", json={"inputs": coded(large)})).status_code == 200
    refused = await client.post("/", content=image + bytes(50_000))
    assert (refused.status_code, "50000 bytes" in refused.text) == (422, True), refused.text


async def test_the_hubs_client_classifies_an_image(predictors):
    transport = httpx.ASGITransport(predictors.app)
    huggingface_hub.set_async_client_factory(lambda: httpx.AsyncClient(transport=transport))
    try:
        async with huggingface_hub.AsyncInferenceClient("http://service") as official:
            both = await official.image_classification(jpeg(9, 9))
        async with huggingface_hub.AsyncInferenceClient("http://service/models/images") as official:
            (best,) = await official.image_classification(jpeg(9, 9), top_k=1)
        assert {each.label for each in both} == {"cat", "dog"}
        assert best == both[0]
    finally:
        huggingface_hub.set_async_client_factory(httpx.AsyncClient)

"""Check of a service with example models (`rayinfer serve --with-examples`) by tritonclient, in its own environment.

    pip install "tritonclient[all]==2.73.0" && python tritonclient_check.py http://127.0.0.1:8000 127.0.0.1:8001

Every line that it prints is a check that passed; it ends with code 1 at the first that did not.
"""

import asyncio
import queue
import sys
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import tritonclient.grpc as grpc_client
import tritonclient.grpc.aio as grpc_aio_client
import tritonclient.http as http_client
import tritonclient.http.aio as http_aio_client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

ROWS = np.arange(16, dtype=np.int32).reshape(1, 16)
ONES = np.ones((1, 16), np.int32)
DTYPES = [
    *(np.bool_, np.uint8, np.uint16, np.uint32, np.uint64, np.int8, np.int16, np.int32, np.int64),
    *(np.float16, np.float32, np.float64, ml_dtypes.bfloat16, np.object_),
]
PROMPT = "Once upon a time"
MODEL, EMBEDDER = "smollm2-135m", "all-minilm-l6-v2"


def example(dtype: Any) -> Any:
    if dtype is np.object_:
        return np.array([[b"a", "ü".encode()], [b"", b"\0\xff"]], dtype=np.object_)
    return np.arange(6).reshape(2, 3).astype(dtype)


def assert_equal(found: Any, wanted: Any) -> None:
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert (found == wanted).all(), (found, wanted)


def assert_raises(call: Callable[[], Any], text: str) -> None:
    message = None
    try:
        call()
    except InferenceServerException as error:
        message = str(error)
    assert message is not None, f"no error with {text!r}"
    assert text in message, (text, message)


def inputs_of(module: Any, *, binary: bool = True) -> list[Any]:
    inputs = [module.InferInput("INPUT0", [1, 16], "INT32"), module.InferInput("INPUT1", [1, 16], "INT32")]
    for each, data in zip(inputs, (ROWS, ONES), strict=True):
        if module in (http_client, http_aio_client):
            each.set_data_from_numpy(data, binary_data=binary)
        else:
            each.set_data_from_numpy(data)
    return inputs


def text_input(module: Any, text: str = PROMPT) -> list[Any]:
    tensor = module.InferInput("text_input", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], dtype=np.object_))
    return [tensor]


def embedder_input(module: Any) -> list[Any]:
    tensor = module.InferInput("text", [2], "BYTES")
    tensor.set_data_from_numpy(np.array([b"A man is eating food.", b"A man eats something."], dtype=np.object_))
    return [tensor]


def check_sums(result: Any) -> None:
    assert_equal(result.as_numpy("OUTPUT0"), ROWS + ONES)
    assert_equal(result.as_numpy("OUTPUT1"), ROWS - ONES)


def check_server(client: Any, module: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("simple")
    assert client.is_model_ready("simple", "1")
    assert not client.is_model_ready("simple", "2")
    assert not client.is_model_ready("none")
    assert client.is_model_ready(MODEL)
    options = {"as_json": True} if module is grpc_client else {}
    assert "classification" in client.get_server_metadata(**options)["extensions"]
    metadata = client.get_model_metadata("simple", **options)
    assert [each["name"] for each in metadata["inputs"]] == ["INPUT0", "INPUT1"]
    config = client.get_model_config("simple", **options)
    config = config.get("config", config)
    assert config["input"][0]["data_type"] == "TYPE_INT32"
    assert client.get_model_metadata(MODEL, **options)["inputs"][0]["name"] == "text_input"
    assert client.get_trace_settings(**options)
    assert client.get_log_settings(**options)
    assert_raises(lambda: client.update_log_settings({"log_info": False}), "read-only")
    assert_raises(lambda: client.update_trace_settings(settings={"trace_level": ["OFF"]}), "read-only")
    assert_raises(lambda: client.get_system_shared_memory_status(), "Shared memory is not supported")
    assert_raises(lambda: client.register_system_shared_memory("a", "/a", 8), "Shared memory is not supported")
    assert_raises(lambda: client.get_cuda_shared_memory_status(), "Shared memory is not supported")
    assert_raises(lambda: client.get_model_metadata("none"), "does not exist")


def check_repository(client: Any, module: Any) -> None:
    options = {"as_json": True} if module is grpc_client else {}
    index = client.get_model_repository_index(**options)
    entries = index["models"] if module is grpc_client else index
    assert {"simple", "identity", MODEL} <= {each["name"] for each in entries}
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    assert_raises(lambda: client.infer("simple", inputs_of(module)), "not ready")
    client.load_model("simple")
    assert client.is_model_ready("simple")
    assert_raises(lambda: client.load_model("none"), "does not exist")
    assert_raises(lambda: client.unload_model(MODEL), "operator")
    assert_raises(lambda: client.load_model("simple", config="{}"), "not supported")


def check_statistics(client: Any, module: Any) -> None:
    options = {"as_json": True} if module is grpc_client else {}

    def count() -> int:
        [statistics] = client.get_inference_statistics("simple", **options)["model_stats"]
        return int(statistics.get("inference_count", 0))

    before = count()
    check_sums(client.infer("simple", inputs_of(module)))
    assert count() == before + 1
    assert len(client.get_inference_statistics(**options)["model_stats"]) >= 3


def check_infer(client: Any, module: Any) -> None:
    check_sums(
        client.infer("simple", inputs_of(module), model_version="1", request_id="a-1", priority=1, timeout=10**7)
    )
    assert client.infer("simple", inputs_of(module), request_id="a-2").get_response()
    outputs = [module.InferRequestedOutput("OUTPUT1"), module.InferRequestedOutput("OUTPUT0", class_count=2)]
    result = client.infer("simple", inputs_of(module), outputs=outputs)
    assert_equal(result.as_numpy("OUTPUT1"), ROWS - ONES)
    assert [bytes(each) for each in result.as_numpy("OUTPUT0").flatten()] == [b"16:15", b"15:14"]
    for dtype in DTYPES:
        data = example(dtype)
        tensor = module.InferInput("IN", list(data.shape), np_to_triton_dtype(data.dtype))
        tensor.set_data_from_numpy(data)
        assert_equal(client.infer("identity", [tensor]).as_numpy("OUT"), data)
    assert_raises(lambda: client.infer("none", inputs_of(module)), "does not exist")
    assert_raises(lambda: client.infer("simple", inputs_of(module), model_version="2"), "no version")
    assert_raises(lambda: client.infer("simple", inputs_of(module)[:1]), "needs the input")
    assert_raises(lambda: client.infer("simple", inputs_of(module), sequence_id=5, sequence_start=True), "sequence_id")


def check_predictors(client: Any, module: Any) -> None:
    """Embed texts and classify one."""
    options = {"as_json": True} if module is grpc_client else {}
    [output] = client.get_model_metadata(EMBEDDER, **options)["outputs"]
    assert (output["name"], [int(size) for size in output["shape"]]) == ("embedding", [-1, 384])
    vectors = client.infer(EMBEDDER, embedder_input(module)).as_numpy("embedding")
    assert vectors.shape == (2, 384)
    assert float(vectors[0] @ vectors[1]) > 0.8
    assert_raises(lambda: client.infer(EMBEDDER, text_input(module)), "no input")
    text = module.InferInput("text", [1], "BYTES")
    text.set_data_from_numpy(np.array([b"Anna lives in Paris."], dtype=np.object_))
    result = client.infer("classifier", [text])
    assert result.as_numpy("probabilities").shape == (1, 3)
    best = module.InferRequestedOutput("probabilities", class_count=1)
    [[named]] = client.infer("classifier", [text], outputs=[best]).as_numpy("probabilities")
    assert bytes(named).endswith(bytes(result.as_numpy("label")[0]))


def check_language_model(client: Any, module: Any) -> None:
    result = client.infer(MODEL, text_input(module), parameters={"max_tokens": 4, "temperature": 0.0})
    [text] = result.as_numpy("text_output")
    assert text
    assert_raises(lambda: client.infer(MODEL, text_input(module), parameters={"nonsense": 1}), "not supported")


def check_http(url: str) -> None:
    client = http_client.InferenceServerClient(url, concurrency=4, network_timeout=120, connection_timeout=120)
    check_server(client, http_client)
    check_repository(client, http_client)
    check_infer(client, http_client)
    check_predictors(client, http_client)
    for binary in (False, True):
        outputs = [http_client.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
        check_sums(client.infer("simple", inputs_of(http_client, binary=not binary), outputs=outputs))
    large = http_client.InferInput("IN", [100_000], "FP32")
    large.set_data_from_numpy(np.zeros(100_000, np.float32))
    for algorithm in ("gzip", "deflate"):
        result = client.infer(
            "identity",
            [large],
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        assert_equal(result.as_numpy("OUT"), np.zeros(100_000, np.float32))
    pending = [client.async_infer("simple", inputs_of(http_client)) for _ in range(8)]
    for each in pending:
        check_sums(each.get_result())
    check_statistics(client, http_client)
    check_language_model(client, http_client)
    client.close()


def check_grpc(url: str) -> None:
    client = grpc_client.InferenceServerClient(url)
    check_server(client, grpc_client)
    check_repository(client, grpc_client)
    check_infer(client, grpc_client)
    check_predictors(client, grpc_client)
    for algorithm in ("gzip", "deflate"):
        check_sums(client.infer("simple", inputs_of(grpc_client), compression_algorithm=algorithm))
    check_statistics(client, grpc_client)
    check_language_model(client, grpc_client)
    done: queue.Queue[Any] = queue.Queue()
    for _ in range(4):
        client.async_infer("simple", inputs_of(grpc_client), callback=lambda result, error: done.put((result, error)))
    for _ in range(4):
        result, error = done.get(timeout=60)
        assert error is None, error
        check_sums(result)
    check_grpc_stream(client)
    client.close()


def check_grpc_stream(client: Any) -> None:
    responses: queue.Queue[Any] = queue.Queue()
    client.start_stream(callback=lambda result, error: responses.put((result, error)))
    client.async_stream_infer("simple", inputs_of(grpc_client), request_id="1")
    result, error = responses.get(timeout=60)
    assert error is None, error
    check_sums(result)
    client.async_stream_infer("none", inputs_of(grpc_client))
    result, error = responses.get(timeout=60)
    assert result is None
    assert "does not exist" in str(error)
    client.async_stream_infer(
        MODEL,
        text_input(grpc_client),
        request_id="2",
        enable_empty_final_response=True,
        parameters={"max_tokens": 6, "temperature": 0.0},
    )
    texts = []
    while True:
        result, error = responses.get(timeout=120)
        assert error is None, error
        response = result.get_response()
        assert response.id == "2"
        if response.parameters["triton_final_response"].bool_param:
            assert not response.outputs
            break
        texts += [bytes(each).decode() for each in result.as_numpy("text_output")]
    client.stop_stream()
    whole = client.infer(MODEL, text_input(grpc_client), parameters={"max_tokens": 6, "temperature": 0.0})
    assert "".join(texts) == bytes(whole.as_numpy("text_output")[0]).decode(), texts


async def check_aio(url: str, grpc_url: str) -> None:
    async with http_aio_client.InferenceServerClient(url) as client:
        assert await client.is_server_ready()
        assert not await client.is_model_ready("none")
        assert (await client.get_model_metadata("simple"))["name"] == "simple"
        for algorithm in (None, "gzip", "deflate"):
            check_sums(
                await client.infer("simple", inputs_of(http_aio_client), request_compression_algorithm=algorithm)
            )
        for algorithm in (None, "gzip", "deflate"):
            large = http_aio_client.InferInput("IN", [100_000], "INT32")
            large.set_data_from_numpy(np.zeros(100_000, np.int32))
            result = await client.infer("identity", [large], response_compression_algorithm=algorithm)
            assert_equal(result.as_numpy("OUT"), np.zeros(100_000, np.int32))
        await client.unload_model("simple")
        assert not await client.is_model_ready("simple")
        await client.load_model("simple")
        assert (await client.infer(EMBEDDER, embedder_input(http_aio_client))).as_numpy("embedding").shape == (2, 384)
        results = await asyncio.gather(*(client.infer("simple", inputs_of(http_aio_client)) for _ in range(8)))
        for each in results:
            check_sums(each)
    async with grpc_aio_client.InferenceServerClient(grpc_url) as client:
        assert await client.is_server_live()
        assert await client.is_model_ready("simple")
        check_sums(await client.infer("simple", inputs_of(grpc_client)))
        assert (await client.infer(EMBEDDER, embedder_input(grpc_client))).as_numpy("embedding").shape == (2, 384)

        async def requests() -> Any:
            for number in range(3):
                yield {
                    "model_name": MODEL,
                    "inputs": text_input(grpc_client),
                    "request_id": str(number),
                    "parameters": {"max_tokens": 4, "temperature": 0.0},
                }

        texts = {"0": "", "1": "", "2": ""}
        async for result, error in client.stream_infer(requests()):
            assert error is None, error
            texts[result.get_response().id] += bytes(result.as_numpy("text_output")[0]).decode()
        assert texts["0"], texts
        assert len(set(texts.values())) == 1, texts


def main() -> None:
    url, grpc_url = sys.argv[1].removeprefix("http://").rstrip("/"), sys.argv[2]
    check_http(url)
    print("passed: tritonclient.http")
    check_grpc(grpc_url)
    print("passed: tritonclient.grpc")
    asyncio.run(check_aio(url, grpc_url))
    print("passed: tritonclient.http.aio and tritonclient.grpc.aio")


if __name__ == "__main__":
    main()

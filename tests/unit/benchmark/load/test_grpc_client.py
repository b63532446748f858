import grpc
import pytest

from rayinfer.benchmark.load.grpc_client import METHOD, stream_infer_client
from rayinfer.benchmark.load.load_client import LoadPlan, run_load
from rayinfer.errors import RayinferError
from rayinfer.servers.kserve.grpc import inference_pb2 as pb


class FakeServer:
    """Server that streams a response for each token asked for; `errors` are by request number, the warm-up's is 0."""

    def __init__(self, errors=()):
        self.errors = dict(errors)
        self.requests = []
        self.keys = []

    async def stream_infer(self, requests, context):
        number = len(self.keys)  # calls run side by side: their requests may not have come yet
        self.keys.append(dict(context.invocation_metadata()).get("authorization"))
        async for request in requests:
            self.requests.append(request)
            if number in self.errors:
                yield pb.ModelStreamInferResponse(error_message=self.errors[number])
                continue
            for _ in range(request.parameters["max_tokens"].int64_param):
                yield pb.ModelStreamInferResponse(infer_response=pb.ModelInferResponse(model_name=request.model_name))


async def load(fake, **fields):
    service, _, name = METHOD.strip("/").partition("/")
    handler = grpc.stream_stream_rpc_method_handler(
        fake.stream_infer, pb.ModelInferRequest.FromString, pb.ModelStreamInferResponse.SerializeToString
    )
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {name: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    plan = LoadPlan(
        base_url=f"127.0.0.1:{port}", model="m", num_requests=4, input_len=3, output_len=5, concurrency=2, **fields
    )
    try:
        return await run_load(plan, open_client=stream_infer_client)
    finally:
        await server.stop(None)


async def test_a_load_over_grpc_streams_each_request_in_a_call_with_the_key():
    fake = FakeServer()
    report = await load(fake, api_key="secret")
    assert (report.completed, report.output_tokens, report.tokens_per_chunk) == (4, 20, 1.0)
    assert report.ttft.count == 4
    assert fake.keys == ["Bearer secret"] * 5
    assert [bytes(each) for each in fake.requests[1].inputs[0].contents.bytes_contents] == [b" a a a"]


async def test_an_error_in_a_stream_is_a_failed_request():
    report = await load(FakeServer({2: "overloaded"}))
    assert (report.completed, report.errors) == (3, {"overloaded": 1})


async def test_a_failed_warm_up_over_grpc_is_an_error():
    with pytest.raises(RayinferError, match=r"the warm-up request to 127\.0\.0\.1:\d+ failed: no key"):
        await load(FakeServer({0: "no key"}))

"""Client of KServe's ModelStreamInfer for a load test: one call for each request."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from rayinfer.benchmark.load.load_client import LoadPlan, RequestTimes, Send
from rayinfer.servers.kserve.grpc import inference_pb2 as pb

METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"
WORD = b" a"  # about a token


@asynccontextmanager
async def stream_infer_client(plan: LoadPlan) -> AsyncIterator[Send]:
    """Open a client of the server at `base_url`, which is HOST:PORT.

    Prompts are texts of as many words as tokens were asked for, and outputs count as of the length asked for: the
    protocol has neither token ids nor a usage.
    """
    async with grpc.aio.insecure_channel(plan.base_url) as channel:
        call = channel.stream_stream(
            METHOD, pb.ModelInferRequest.SerializeToString, pb.ModelStreamInferResponse.FromString
        )
        yield lambda prompt, output_len: _send(call, plan, len(prompt), output_len)


async def _send(call: grpc.aio.StreamStreamMultiCallable, plan: LoadPlan, num_words: int, num: int) -> RequestTimes:
    times = RequestTimes(prompt_tokens=num_words)
    metadata = (("authorization", f"Bearer {plan.api_key}"),) if plan.api_key else ()
    started = last = time.perf_counter()
    try:
        stream = call(metadata=metadata, timeout=plan.timeout_s)
        await stream.write(_request(plan.model, num_words, num))
        await stream.done_writing()
        async for response in stream:
            if response.error_message:
                times.error = response.error_message
                return times
            now = time.perf_counter()
            if times.first_token_s is None:
                times.first_token_s = now - started
            else:
                times.gaps_s.append(now - last)
            times.chunk_tokens.append(None)
            last = now
    except grpc.aio.AioRpcError as error:
        times.error = f"{error.code().name}: {error.details()}"
        return times
    if times.first_token_s is None:
        times.error = "the stream held no token"
    times.output_tokens = num
    times.end_to_end_s = time.perf_counter() - started
    return times


def _request(model: str, num_words: int, output_len: int) -> pb.ModelInferRequest:
    request = pb.ModelInferRequest(model_name=model)
    text = request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
    text.contents.bytes_contents.append(WORD * num_words)
    request.parameters["max_tokens"].int64_param = output_len
    request.parameters["temperature"].double_param = 0.0
    request.parameters["ignore_eos"].bool_param = True
    return request

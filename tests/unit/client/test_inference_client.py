import concurrent.futures
import threading
import time

import pytest

from rayinfer import InferenceClient, SamplingParams
from rayinfer.errors import UnknownModel


@pytest.fixture
def client(address):
    with InferenceClient(address, max_retries=0) as client:
        yield client


def wait_until(is_so) -> None:
    deadline = time.monotonic() + 5
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_requests_are_answered_whole_streamed_and_as_futures(client, generator):
    whole = client.generate("hello", SamplingParams(max_tokens=4))
    assert whole.outputs[0].text == "Hello there!"
    outputs = list(client.stream("hello"))
    assert "".join(each.text for output in outputs for each in output.outputs) == "Hello there!"
    futures = [client.submit("hello") for _ in range(20)]
    assert {future.result(5).outputs[0].text for future in concurrent.futures.as_completed(futures)} == {"Hello there!"}
    assert generator.requests[0].sampling_params.max_tokens == 4
    assert client.models() == ["org/tiny"]


def test_an_aborted_request_and_a_closed_stream_end_in_the_service(client, generator):
    generator.blocks_after = 1
    future = client.submit("hello")
    wait_until(generator.has_blocked.is_set)
    client.abort(future)
    wait_until(lambda: len(generator.aborted) == 1)
    assert future.cancelled()
    stream = client.stream("hello")
    assert next(stream).outputs[0].text == "Hello"
    stream.close()
    wait_until(lambda: len(generator.aborted) == 2)


def test_errors_are_raised_in_the_callers_thread(client):
    with pytest.raises(UnknownModel):
        client.generate("hello", model="gone")
    with pytest.raises(UnknownModel):
        next(client.stream("hello", model="gone"))
    assert isinstance(client.submit("hello", model="gone").exception(5), UnknownModel)


def test_operators_pause_and_resume(client):
    client.pause()
    assert client.is_paused()
    client.resume()
    assert not client.is_paused()


def test_closing_ends_what_is_in_flight_and_the_thread(address, generator):
    generator.blocks_after = 0
    client = InferenceClient(address)
    future = client.submit("hello")
    wait_until(generator.has_blocked.is_set)
    client.close()
    client.close()
    assert future.cancelled()
    wait_until(generator.has_aborted.is_set)
    assert "inference-client" not in {thread.name for thread in threading.enumerate()}
    with pytest.raises(RuntimeError, match="closed"):
        client.submit("hello")


def test_an_address_may_end_as_openais_clients_have_it(address):
    with InferenceClient(f"{address}/v1/") as client:
        assert client.submit("Once").result().outputs[0].text

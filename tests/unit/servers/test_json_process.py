import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rayinfer.errors import RequestError, RequestFailed
from rayinfer.servers.json_decoding import decode_json
from rayinfer.servers.json_process import JsonProcess
from support.services.polling import wait_until

WITH_PATH = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


@pytest.fixture(scope="module")
def process():
    process = JsonProcess()
    yield process
    process.close()


@pytest.mark.parametrize(
    "body",
    [
        b"0",
        json.dumps({"prompt": list(range(100_000)), "user": "a"}).encode(),
        json.dumps({f"member {number}": {"a": [number, 0.5, None, True]} for number in range(6000)}).encode(),
        json.dumps([[[[{"only": ["日本" * 50] * 5000}]]]]).encode(),
        json.dumps({"prompt": "a" * 300_000}).encode(),
        json.dumps([10**3000] * 200).encode(),
        b"[]",
    ],
)
def test_a_body_is_decoded_as_it_is_in_the_same_process(process, body):
    assert process.decode(body) == decode_json(body)


@pytest.mark.parametrize(
    "body", [b"[" * 200_000, b'{"n": NaN}', b'{"n": ' + b"9" * 5000 + b"}", b"[1,\n]", b'"\xff"', b'{"a": "\\ud83d"}']
)
def test_a_body_is_refused_in_the_same_words(process, body):
    with pytest.raises(RequestError) as here:
        decode_json(body)
    with pytest.raises(RequestError) as there:
        process.decode(body)
    assert str(there.value) == str(here.value)
    assert (there.value.param, there.value.code) == (here.value.param, here.value.code)


@pytest.mark.parametrize("values", [b",".join([b"1e300"] * (2**18 - 10)), b",".join([b"9" * 3999] * 1040)])
def test_slow_numbers_take_little_time_of_the_process_that_has_streams_to_serve(process, values):
    """json.loads takes 45 and 60 ms, in which no other thread runs."""
    body = b'{"messages": [%s]}' % values
    here, there = thread_seconds(decode_json, body), thread_seconds(process.decode, body)
    assert there < here / 2


def thread_seconds(decode, body) -> float:
    """Time a decoder by the processor time of this thread: the least of three."""
    seconds = []
    for _ in range(3):
        started = time.thread_time()
        decode(body)
        seconds.append(time.thread_time() - started)
    return min(seconds)


def test_a_process_that_was_killed_is_replaced_for_the_next_body():
    process = JsonProcess()
    assert process.decode(b"[1]") == [1]
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert process.decode(b"[2]") == [2]
    process.close()


def test_a_process_that_dies_while_it_decodes_fails_that_body_alone():
    process = JsonProcess()
    with pytest.raises(RequestFailed):
        process.decode(b"")  # which ends it, as the end of its input does
    assert process.decode(b"[2]") == [2]
    process.close()


def test_the_process_ends_with_the_one_that_it_decodes_for():
    program = (
        "from rayinfer.servers.json_process import JsonProcess; import os;"
        "process = JsonProcess(); process.decode(b'1'); print(process.pid, flush=True); os._exit(1)"
    )
    output = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, env=WITH_PATH, check=False).stdout
    wait_until(lambda: not psutil.pid_exists(int(output)), 10.0)

"""Hostile requests: as large, deep, numerous, wrong or slow as a service's limits allow."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from rayinfer.benchmark.control_plane.overhead.hostile_grammars import hostile_forms
from rayinfer.benchmark.control_plane.overhead.hostile_images import CHAT, hostile_images, image_bodies, large_images

COMPLETIONS = "/v1/completions"
MAX_BODY_BYTES = 4 * 2**20  # a service's default limit, as are the next three
MAX_VALUES = 2**18
MAX_PIECES = 2**15
MAX_MESSAGES = 4096
MAX_HEADERS = 100
NUM_GRAMMARS = 1000  # all different
GRAMMARS_PER_S = 1.0  # of each client


@dataclass(frozen=True, kw_only=True, slots=True)
class HostileRequest:
    """Bytes to send on a connection of their own, and the client's behavior."""

    content: bytes
    is_complete: bool = True  # else the client disconnects without a reply
    per_s: float | None = None  # requests a second of one client; None: the next one follows the reply


def hostile_kinds() -> list[str]:
    """Return the names of the kinds."""
    return list(_KINDS)


def hostile_requests(model: str, kinds: Sequence[str]) -> dict[str, list[HostileRequest]]:
    """Make the requests of these kinds; all of a kind are sent in turn."""
    return {kind: list(_KINDS[kind](model)) for kind in kinds}


def _numbers(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt=[45678] * (MAX_VALUES - 4))
    yield _completion(model, prompt=[0.1234567890] * (MAX_VALUES - 4))
    yield _raw_completion(model, b'"prompt": [%s]' % b",".join([b"1e300"] * (MAX_VALUES - 4)))


def _long_numbers(model: str) -> Iterator[HostileRequest]:
    num_integers = MAX_BODY_BYTES // 4000 - 1
    yield _raw_completion(model, b'"prompt": [%s]' % b",".join([b"9" * 3999] * num_integers))
    fraction = b"2.2250738585072011" + b"3" * 700 + b"e-308"  # which takes a binary float the most work
    yield _raw_completion(model, b'"prompt": [%s]' % b",".join([fraction] * (MAX_BODY_BYTES // 725 - 1)))


def _token_ids_that_fit(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt=[123] * 130_000, return_token_ids=True)
    yield _completion(model, prompt=[[123] * 125] * 1000)


def _strings(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt=["abcdefghij"] * (MAX_VALUES - 4))
    yield _completion(model, prompt=[["abc"] * 6] * (MAX_PIECES - 20))


def _nesting(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt=[_nested(60)] * (MAX_PIECES // 64))
    yield _raw_completion(model, b'"prompt": ' + b"[" * (MAX_BODY_BYTES - 100))
    yield _raw_completion(model, b'"prompt": ' + b'[{"":' * ((MAX_BODY_BYTES - 100) // 5))


def _template_arguments(model: str) -> Iterator[HostileRequest]:
    for number in (90_000, MAX_PIECES - 100):
        yield _chat(model, chat_template_kwargs={f"argument {index}": index for index in range(number)})
        yield _chat(model, chat_template_kwargs={"nested": {f"argument {index}": index for index in range(number)}})
    yield _chat(model, chat_template_kwargs={"text": "<" * (MAX_BODY_BYTES - 1000)})


def _messages(model: str) -> Iterator[HostileRequest]:
    yield _chat(model, [{"role": "user", "content": "hello"}] * MAX_MESSAGES)
    yield _chat(model, [{"role": "user", "content": "hello " * 160}] * MAX_MESSAGES)
    yield _chat(model, [{"role": "user", "content": [{"type": "text", "text": "hi"}] * MAX_MESSAGES}])
    yield _chat(model, [{"role": "assistant", "tool_calls": [{"id": "1", "type": "a"}] * MAX_MESSAGES}])
    fields = {f"field {number}": number for number in range(60)}
    yield _chat(model, [{"role": "user", "content": "a"} | fields] * (MAX_PIECES // 64))


def _long_texts(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt="a word or two " * 25_000)
    yield _completion(model, prompt="é" * 100_000)
    yield _completion(model, prompt="a" * (MAX_BODY_BYTES - 1000))
    yield _completion(model, prompt=" " * (MAX_BODY_BYTES - 1000))
    yield _completion(model, prompt=["word " * 800] * 1000)


def _escapes(model: str) -> Iterator[HostileRequest]:
    for escape in (b"\\u0041", b"\\n", b"\\ud83d\\ude00", b"{[:", b'\\"'):
        yield _raw_completion(model, b'"prompt": "%s"' % (escape * ((MAX_BODY_BYTES - 200) // len(escape))))
    yield _raw_completion(model, b'"prompt": "%s\\ud83d"' % (b"\\ud83d\\ude00" * 9000))


def _echoes(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt="a word or two " * 25_000, echo=True, n=128, stream=True)
    yield _completion(model, prompt="a word or two " * 25_000, echo=True, n=128)
    yield _completion(model, prompt=[123] * 130_000, n=64, return_token_ids=True, stream=True)
    yield _completion(model, prompt=[123] * 130_000, n=64, return_token_ids=True)


def _logprobs(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, prompt=[123] * 8000, prompt_logprobs=20)
    yield _completion(model, prompt=[123] * 8000, echo=True, logprobs=20, n=1, stream=True)


def _logit_biases(model: str) -> Iterator[HostileRequest]:
    for number in (1024, 10_000, MAX_PIECES - 100):
        yield _completion(model, logit_bias={str(index): 1 for index in range(number)})
    yield _completion(model, allowed_token_ids=list(range(4096)))
    yield _completion(model, allowed_token_ids=list(range(200_000)))


def _stops(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, stop=["s" * 200_000 + str(number) for number in range(16)], max_tokens=50)
    yield _completion(model, stop=[f"stop {number}" for number in range(5000)])
    yield _completion(model, stop_token_ids=list(range(4096)))


def _bad_words(model: str) -> Iterator[HostileRequest]:
    yield _completion(model, bad_words=[f"{number} bad words" for number in range(256)])
    yield _completion(model, bad_words=["b" * 256] * 256)
    yield _completion(model, bad_words=["b"] * 5000)


def _grammars(model: str) -> Iterator[HostileRequest]:
    for _, form in islice(hostile_forms(0), NUM_GRAMMARS):
        body = {"model": model, "prompt": "hello", "max_tokens": 4, "structured_outputs": form}
        yield _post(COMPLETIONS, json.dumps(body, separators=(",", ":")).encode(), per_s=GRAMMARS_PER_S)


def _short_answers(model: str) -> Iterator[HostileRequest]:
    """What grammars are beside the answers that they are for."""
    for number in range(100):
        body = {"model": model, "prompt": f"hello {number}", "max_tokens": 4}
        yield _post(COMPLETIONS, json.dumps(body).encode(), per_s=GRAMMARS_PER_S)


def _images(model: str) -> Iterator[HostileRequest]:
    """Make what a service has to refuse, by each path; it needs a model that reads images, else all is refused."""
    for urls in hostile_images().values():
        for path, body in image_bodies(model, urls).items():
            yield _post(path, body)


def _large_images(model: str) -> Iterator[HostileRequest]:
    """Make images that are decoded and encoded; all are different."""
    for url in large_images():
        yield _post(CHAT, image_bodies(model, [url])[CHAT])


def _wrong_types(model: str) -> Iterator[HostileRequest]:
    yield _chat(model, [1] * (MAX_VALUES - 10))
    yield _chat(model, [{"role": "user", "content": 1}] * MAX_MESSAGES)
    yield _completion(model, stop=[1] * (MAX_VALUES - 10), temperature="hot", n="many")
    yield _completion(model, prompt={"a": [1] * 1000}, top_k="x" * 1_000_000, user=["x" * 1_000_000])
    yield _completion(model, prompt=[[1], "a"] * 10_000)
    yield _post(COMPLETIONS, json.dumps([1] * 100_000).encode())


def _over_the_limits(model: str) -> Iterator[HostileRequest]:
    yield _post(COMPLETIONS, b'{"prompt": "%s"}' % (b"a" * MAX_BODY_BYTES))
    yield _completion(model, prompt=[1] * (MAX_VALUES + 1))
    yield _post(COMPLETIONS, b"{}", more={f"x-header-{number}": "a" for number in range(MAX_HEADERS)})
    yield _post(COMPLETIONS, b"{}", more={"x-long": "a" * 40_000})
    yield _post(COMPLETIONS, b"{}", more={"x-longer": "a" * 300_000})


def _half_sent_bodies(model: str) -> Iterator[HostileRequest]:
    whole = _completion(model, prompt=[45678] * (MAX_VALUES - 4)).content
    for part in (100, 70_000, len(whole) - 1):
        yield HostileRequest(content=whole[:part], is_complete=False)


def _tiny_requests(model: str) -> Iterator[HostileRequest]:
    for body in (b"{", b"[]", b"\xff", b'{"prompt": 1}', b'{"prompt": "a", "n": 0}', b'{"prompt": "a", "stop": [1]}'):
        yield _post(COMPLETIONS, body, per_s=10.0)


def _dropped_connections(model: str) -> Iterator[HostileRequest]:
    yield HostileRequest(content=b"", is_complete=False, per_s=10.0)
    yield HostileRequest(content=b"POST /v1/comp", is_complete=False, per_s=10.0)
    stream = _completion(model, prompt="hello", max_tokens=1000, stream=True)
    yield HostileRequest(content=stream.content, is_complete=False, per_s=10.0)


def _unknown_paths(model: str) -> Iterator[HostileRequest]:
    for path in ("/nowhere", "/" + "a" * 20_000, "/v1/models/" + "%2F" * 5000, "/v1/requests/" + "a" * 5000 + "/trace"):
        yield HostileRequest(content=_head("GET", path, {}), per_s=10.0)
    yield HostileRequest(content=b"\x00\xff" * 30_000, per_s=10.0)


_KINDS: Mapping[str, Callable[[str], Iterator[HostileRequest]]] = {
    make.__name__.replace("_", " ").strip(): make
    for make in (
        *(_numbers, _long_numbers, _token_ids_that_fit, _strings, _nesting, _template_arguments, _messages),
        *(
            _long_texts,
            _escapes,
            _echoes,
            _logprobs,
            _logit_biases,
            _stops,
            _bad_words,
            _wrong_types,
        ),
        *(
            _images,
            _large_images,
            _grammars,
            _short_answers,
            _over_the_limits,
            _half_sent_bodies,
            _tiny_requests,
            _dropped_connections,
            _unknown_paths,
        ),
    )
}


def _completion(model: str, **fields: object) -> HostileRequest:
    body = {"model": model, "prompt": "hello", "max_tokens": 2} | fields
    return _post(COMPLETIONS, json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode())


def _chat(model: str, messages: object = None, **fields: object) -> HostileRequest:
    body = {"model": model, "messages": messages or [{"role": "user", "content": "a"}], "max_tokens": 2} | fields
    return _post(CHAT, json.dumps(body, separators=(",", ":")).encode())


def _raw_completion(model: str, member: bytes) -> HostileRequest:
    return _post(COMPLETIONS, b'{"model": "%s", "max_tokens": 2, %s}' % (model.encode(), member))


def _post(
    path: str, body: bytes, *, more: Mapping[str, str] | None = None, per_s: float | None = None
) -> HostileRequest:
    headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(more or {})}
    return HostileRequest(content=_head("POST", path, headers) + body, per_s=per_s)


def _head(method: str, path: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close"]
    return "\r\n".join([*lines, *(f"{name}: {value}" for name, value in headers.items()), "", ""]).encode()


def _nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value

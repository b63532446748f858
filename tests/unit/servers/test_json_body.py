import json
import sys

import pytest

from rayinfer.errors import RequestError
from rayinfer.servers.json_decoding import MAX_DEPTH, MAX_PIECES, MAX_VALUES, decode_json
from rayinfer.servers.json_error_location import MAX_DIGITS, MAX_SEARCHED_BYTES

JSON = {"content-type": "application/json"}
LARGEST_BODY = 4 * 2**20  # the default limit


async def post(client, content: bytes, headers: dict[str, str] | None = None):
    return await client.post("/v1/completions", content=content, headers=JSON if headers is None else headers)


def refusal(content: bytes) -> str:
    with pytest.raises(RequestError) as refused:
        decode_json(content)
    assert refused.value.code == "invalid_json"
    return refused.value.message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b'{"prompt": "a",}',
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}',
        b'{"prompt": "a", "temperature": -Infinity}',
        b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}",
        b'["prompt"]',
        b'"prompt"',
        b"null",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud83d"}',
        b'{"prompt": "a", "user": "\\udc00"}',
        b"[" * 9000,
        b'{"prompt": ' + b"[" * 9000 + b"]" * 9000 + b"}",
        '{"prompt": "a"}'.encode("utf-16"),
    ],
)
async def test_what_is_not_a_json_object_is_400(client, content):
    response = await post(client, content)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "invalid_json")
    assert len(response.content) < 500


async def test_the_error_of_broken_json_has_its_location(client):
    response = await post(client, b'{\n  "prompt": }')
    assert "line 2, column 13" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "reported"),
    [
        (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", "cannot be read: max_tokens: a number is too large."),
        (b'{"prompt": [' + b"9" * 5000 + b", NaN", "cannot be read: a number is too large."),
        (
            b'{"prompt": "a", "messages": [[], {"content": "\\udc00"}]}',
            "cannot be read: messages.1.content: half a surrogate pair is no character.",
        ),
        (b'{"prompt": "a", "\\udc00": 1}', "cannot be read: half a surrogate pair is no character."),
        (
            b'{"prompt": ' + b"[" * 9000 + b"]" * 9000 + b"}",
            "cannot be read: lists and objects are nested more than 64 deep.",
        ),
        (b'{"prompt": "a", "temperature": -Infinity}', "is not valid JSON: temperature: -Infinity is not a number."),
        (b'{"prompt": [1, NaN]}', "is not valid JSON: prompt.1: NaN is not a number."),
        (b'{"prompt": "' + b"a" * MAX_SEARCHED_BYTES + b'", "n": NaN}', "is not valid JSON: NaN is not a number."),
        (b'{"a": [{}, []], "logit_bias": {"5": NaN}}', "is not valid JSON: logit_bias.5: NaN is not a number."),
        (b'{"temperature": NaN, "prompt": ' + b"[" * 63, "is not valid JSON: NaN is not a number."),
        (b'{"prompt": [0.' + b"9" * 5000 + b"]}", "cannot be read: prompt.0: a number is too large."),
        (b'\xef\xbb\xbf{"prompt": "a"}', "is not valid JSON: it begins with a byte order mark."),
        (b'{"prompt": "\xed\xa0\x80"}', "is not valid UTF-8: see byte 12."),
    ],
)
async def test_unreadable_json_has_a_plain_error(client, content, reported):
    message = (await post(client, content)).json()["error"]["message"]
    assert message == f"The request's body {reported}"


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "multipart/form-data; boundary=x"},
        {"content-type": "x" * 5000},
        {"content-type": "application/json", "content-encoding": "gzip"},
        {"content-encoding": "deflate, " * 500},
    ],
)
async def test_other_kinds_of_content_are_415(client, headers):
    response = await post(client, b'{"prompt": "a"}', headers)
    assert (response.status_code, response.json()["error"]["code"]) == (415, "unsupported_content_type")
    assert len(response.content) < 500


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/x+json"])
async def test_every_valid_form_of_json_is_accepted(client, content_type):
    assert (await post(client, b'{"prompt": "a"}', {"content-type": content_type})).status_code == 200


async def test_text_in_any_script_and_whole_surrogate_pairs_are_fine(client):
    assert (await post(client, json.dumps({"prompt": "日本 😀"}).encode())).status_code == 200
    assert (await post(client, '{"prompt": "日本 😀"}'.encode())).status_code == 200


def nested(depth: int, opening: bytes = b"[", closing: bytes = b"]") -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}"), (b'[{"a":', b"}]")])
def test_the_deepest_body_is_read_and_one_level_more_is_refused(opening, closing):
    levels = MAX_DEPTH // opening.count(b"[" if opening != b'{"a":' else b"{") // (2 if opening == b'[{"a":' else 1)
    assert decode_json(nested(levels, opening, closing)) is not None
    assert f"nested more than {MAX_DEPTH} deep" in refusal(nested(levels + 1, opening, closing))


def test_depth_is_refused_before_python_recurses():
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10**6)  # with which json would go on until the stack ends
    try:
        assert "nested" in refusal(nested(30_000))
    finally:
        sys.setrecursionlimit(before)


@pytest.mark.parametrize(
    "text", ["[" * 500, '"[' * 100, "\\", '\\"[[[' * 50, '\\\\"' + "{" * 200, "]" * 500, '", "' + "[" * 99]
)
def test_brackets_in_texts_do_not_count(text):
    value = {"prompt": [text, {text: text}], "then": [[text]]}
    assert decode_json(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ['a"', "\\", '\\"', '\\\\"', '"'])
def test_no_text_hides_the_brackets_behind_it(text):
    assert "nested" in refusal(b'{"prompt": ' + json.dumps(text).encode() + b', "a": ' + nested(MAX_DEPTH) + b"}")


def test_as_many_lists_as_are_allowed_are_read():
    assert len(decode_json(b"[" + b"[]," * (MAX_PIECES - 2) + b"[]]")) == MAX_PIECES - 1


@pytest.mark.parametrize(
    "content", [b"[" * LARGEST_BODY, b"[]," * (LARGEST_BODY // 3), b"[" * 65 + b"]" * LARGEST_BODY]
)
def test_millions_of_brackets_are_refused_unread(content):
    assert "more than 32768 lists, objects and members" in refusal(content)


def test_as_many_members_as_are_allowed_are_read_and_one_more_is_refused():
    members = {str(number): {} for number in range(MAX_PIECES // 2)}
    assert "lists, objects and members" in refusal(json.dumps(members).encode())
    del members["0"]
    assert decode_json(json.dumps(members).encode()) == members
    assert decode_json(json.dumps([":" * 2 * MAX_PIECES, members]).encode()) == [":" * 2 * MAX_PIECES, members]


def test_as_many_numbers_as_are_allowed_are_read_and_one_more_is_refused():
    body = {"prompt": [1] * (MAX_VALUES - 1), "text": "," * MAX_VALUES}
    assert decode_json(json.dumps(body).encode()) == body
    body["prompt"].append(1)
    assert "more than 262144 values" in refusal(json.dumps(body).encode())


def test_digits_in_texts_do_not_count_and_numbers_of_many_digits_do():
    text = "1" * 2 * MAX_DIGITS
    assert decode_json(f'["{text}", 5, 0.5]'.encode()) == [text, 5, 0.5]
    assert decode_json(b"9" * MAX_DIGITS) == int("9" * MAX_DIGITS)
    for literal in (text, "-" + text, "0." + text, text + ".5", "1e" + text):
        assert "a number is too large" in refusal(f'[5, "{text}", {literal}]'.encode())


def test_a_long_number_is_refused_whatever_python_is_set_to_read():
    before = sys.get_int_max_str_digits()
    try:
        for limit in (0, 640):
            sys.set_int_max_str_digits(limit)
            assert "a number is too large" in refusal(b"9" * (MAX_DIGITS + 1))
        assert "a number is too large" in refusal(b"9" * 641)
    finally:
        sys.set_int_max_str_digits(before)


def test_of_two_members_with_one_name_the_later_counts():
    assert decode_json(b'{"a": 1, "b": 2, "a": 3}') == {"a": 3, "b": 2}


@pytest.mark.parametrize("text", [r"\\ud83d", r"\\\\ud83d\\udc00", r"\ud83d\ude00", r"\uD83D\uDE00", r"\u0041"])
def test_whole_pairs_and_what_only_looks_like_half_of_one_are_read(text):
    assert decode_json(f'["{text}"]'.encode()) == json.loads(f'["{text}"]')


@pytest.mark.parametrize("text", [r"\ud83d", r"\ude00\ud83d", r"\ud83d\ud83d\ude00", r"\\\udbff", r"\ud83dx\ude00"])
@pytest.mark.parametrize("around", ['["%s"]', '{"%s": 1}'])
def test_half_a_pair_is_refused_wherever_it_stands(text, around):
    assert "half a surrogate pair" in refusal((around % text).encode())


@pytest.mark.parametrize(
    "content",
    [
        b'"\x00"',
        b'"a\nb"',
        b"01",
        b"1.",
        b".5",
        b"+1",
        b"0x10",
        b"'a'",
        b"[1] 2",
        b"{1: 2}",
        b"nul",
        b"]" * LARGEST_BODY,
    ],
)
def test_nearly_json_is_refused(content):
    assert "is not valid JSON" in refusal(content)


LENGTHS = [
    ("POST", "/v1/completions", '{"prompt": "a", "max_tokens": NUMBER}', "max_tokens"),
    ("POST", "/v1/chat/completions", '{"messages": [{"role": "user", "content": "a"}], "seed": NUMBER}', "seed"),
    ("POST", "/generate", '{"inputs": "a", "parameters": {"max_new_tokens": NUMBER}}', "parameters.max_new_tokens"),
    ("PUT", "/api", '{"prompts": ["a"], "tokens_to_generate": NUMBER}', "tokens_to_generate"),
    ("POST", "/v2/models/org/tiny/generate", '{"text_input": "a", "max_tokens": NUMBER}', "max_tokens"),
    (
        "POST",
        "/v2/models/org/tiny/infer",
        '{"inputs": [{"name": "text_input", "datatype": "BYTES", "shape": [NUMBER], "data": ["a"]}]}',
        "inputs.0.shape.0",
    ),
    ("POST", "/v1/models/org/tiny:predict", '{"instances": ["a"], "parameters": {"seed": NUMBER}}', "parameters.seed"),
    ("POST", "/tokenize", '{"prompt": "a", "truncate_prompt_tokens": NUMBER}', "truncate_prompt_tokens"),
    ("POST", "/detokenize", '{"tokens": [1, NUMBER]}', "tokens.1"),
]


@pytest.mark.parametrize(("method", "path", "body", "field"), LENGTHS, ids=[path for _, path, _, _ in LENGTHS])
async def test_numbers_that_no_float_holds_are_refused_by_their_field(client, method, path, body, field):
    for number, said in (
        ("1e400", "a number is too large"),
        ("-1e400", "a number is too large"),
        ("1E+999", "a number is too large"),
        ("0.1e000999", "a number is too large"),
        ("NaN", "NaN is not a number"),
        ("-Infinity", "-Infinity is not a number"),
    ):
        answer = await client.request(method, path, content=body.replace("NUMBER", number))
        assert (answer.status_code, f": {field}: {said}." in answer.text) == (400, True), (number, answer.text)


@pytest.mark.parametrize(("method", "path", "body", "field"), LENGTHS[:5], ids=[path for _, path, _, _ in LENGTHS[:5]])
async def test_integers_may_be_written_as_floats_and_others_are_refused(client, method, path, body, field):
    assert (await client.request(method, path, content=body.replace("NUMBER", "1e1"))).status_code == 200
    answer = await client.request(method, path, content=body.replace("NUMBER", "1.5e0"))
    assert answer.status_code in (400, 422)
    assert f"{field}: Input should be a valid integer, got 1.5" in answer.text


def test_the_largest_floats_and_texts_like_larger_ones_are_read():
    body = ["1e999", 1.7976931348623157e308, 1e-999, 9e307]
    assert decode_json(b'["1e999", 1.7976931348623157e308, 1e-999, 9e307]') == body
    assert decode_json(b"[" + b"9" * 350 + b"]") == [int("9" * 350)]
    assert "0: a number is too large" not in refusal(b"[" + b"9" * 350 + b", 1e999]")
    assert "1: a number is too large" in refusal(b"[" + b"9" * 350 + b", 1e999]")

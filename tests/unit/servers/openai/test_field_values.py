"""Every field of both bodies with values that it must not have: 400, by name, and nothing is generated."""

import json

import pytest

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
BODIES = {TEXT: {"prompt": "hello"}, CHAT: {"messages": [{"role": "user", "content": "hello"}]}}
VOCAB_SIZE = 384
HUGE = 10**400

NO_NUMBER = ["1", [1], {"1": 1}, True]
NO_BOOLEAN = ["true", 1, 0, 0.0, [], {}]
NO_TEXT = [1, 1.5, True, ["x"], {}]
NO_TOKEN_IDS = [[-1], [VOCAB_SIZE], [2**31], [HUGE], ["1"], [1.5], [True], [None], [[1]], 1, "1", {}, [1] * 5000]
NO_PROMPT = ["", [], [""], [[]], [-1], [VOCAB_SIZE], [HUGE], [1.5], [True], [None], ["a", 1], 1, 1.5, True, {}, None]

# Field: values of the wrong type, and values outside its range with what the answer says of the range.
NUMBERS = {
    "temperature": ([-0.1, 2.1, 3, HUGE], "[0, 2]"),
    "top_p": ([0, -0.5, 1.01, HUGE], "(0, 1]"),
    "min_p": ([-0.1, 1.1], "[0, 1]"),
    "typical_p": ([0, -0.1, 1.1], "(0, 1]"),
    "repetition_penalty": ([0, -1, 1e-320, 10.5], "[1e-06, 10]"),
    "presence_penalty": ([-2.1, 2.1], "[-2, 2]"),
    "frequency_penalty": ([-2.1, 2.1], "[-2, 2]"),
}
INTEGERS = {
    "n": ([0, -1, 129, HUGE], "from 1 to 128"),
    "max_tokens": ([-1, 0, 2**31, HUGE], "from 1 to 2147483647"),
    "max_completion_tokens": ([-1, 0, 2**31, HUGE], "from 1 to 2147483647"),
    "min_tokens": ([-1, 2**31, HUGE], "from 0 to 2147483647"),
    "top_k": ([-2, 2**31, HUGE], "from -1 to 2147483647"),
    "seed": ([-(2**63) - 1, 2**64, HUGE], "from -9223372036854775808 to 18446744073709551615"),
    "prompt_logprobs": ([-2, 21, HUGE], "from -1 to 20"),
    "priority": ([-11, 11, HUGE], "from -10 to 10"),
}
BOOLEANS = (
    *("stream", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "add_special_tokens"),
    *("return_token_ids", "return_tokens_as_token_ids"),
)
OTHERS = {
    "model": NO_TEXT,
    "stop": ["", [""], ["a", ""], ["x"] * 17, [1], [None], 1, True, {}],
    "stop_token_ids": NO_TOKEN_IDS,
    "allowed_token_ids": [[], *NO_TOKEN_IDS],
    "bad_words": [[""], [1], [None], ["x"] * 257, ["x" * 257], ["ab " * 80], 1, "x", {}, ["x"] * 5000],
    "logit_bias": [
        *[{"384": 1}, {"-1": 1}, {"x": 1}, {"": 1}, {"1.0": 1}, {" 5": 1}, {"05": 1}, {"9" * 4000: 1}, {"٣": 1}],
        *[{"5": 100.5}, {"5": -101}, {"5": HUGE}, {"5": "1"}, {"5": None}, {"5": True}, {"5": [1]}],
        *[[], [[5, 1]], 5, "5", True, {str(i): 1 for i in range(1025)}],
    ],
    "stream_options": [{"include_usage": True}, {}, 1, "x", [], {"include_usage": 1}],
    "cache_salt": ["", "x" * 129, "a/b", "a@b", "a\\b", "a\0b", *NO_TEXT],
    "request_id": NO_TEXT,
    "user": NO_TEXT,
    "best_of": [0, -1, 129, HUGE, 1.5, "1", True, [1]],
    "truncate_prompt_tokens": [0, -2, 256, HUGE, 1.5, "5", True, [], {}],
    "truncation_side": ["", "middle", *NO_TEXT],
    "logprob_token_ids": [*NO_TOKEN_IDS, [5] * 129],
    "metadata": ["x", 1, True, [], {"a": 1}, {"a": None}, {str(i): "" for i in range(17)}],
    "store": NO_BOOLEAN,
    "service_tier": NO_TEXT,
    "safety_identifier": NO_TEXT,
    "prompt_cache_key": NO_TEXT,
    "speculation": ["", "on", "4", 0, 17, -1, HUGE, 1.5, True, False, ["auto"], {}],
}
OF_ONE_ENDPOINT = {
    TEXT: {
        "logprobs": [-1, 21, HUGE, 1.5, "1", True, False, []],
        "echo": NO_BOOLEAN,
        "prompt": NO_PROMPT,
        "suffix": ["x", 1],
    },
    CHAT: {
        "logprobs": NO_BOOLEAN,
        "messages": [[], "x", {}, None, 1, ["x"], [{}], [{"role": "x"}], [{"role": "user"}]],
        "add_generation_prompt": NO_BOOLEAN,
        "continue_final_message": NO_BOOLEAN,
        "chat_template_kwargs": ["x", 1, [], {"messages": []}],
        "reasoning_effort": ["huge", 1, True],
        "documents": ["x", 1, True, {}, ["x"], [1], [{}] * 4097],
        "chat_template": ["x", "", *NO_TEXT],
    },
}
CASES = [
    (path, field, values)
    for path in BODIES
    for field, values in (
        *((name, [*NO_NUMBER, *values]) for name, (values, _) in NUMBERS.items()),
        *((name, [*NO_NUMBER, 1.5, *values]) for name, (values, _) in INTEGERS.items()),
        *((name, NO_BOOLEAN) for name in BOOLEANS),
        *OTHERS.items(),
        *OF_ONE_ENDPOINT[path].items(),
    )
]


async def refusal(client, path, content) -> dict:
    if not isinstance(content, bytes):
        content = json.dumps(BODIES[path] | content).encode()
    response = await client.post(path, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400, content[:200]
    assert len(response.content) < 1500
    return response.json()["error"]


@pytest.mark.parametrize("path", BODIES)
async def test_every_field_is_refused_by_its_name(client, generator, path):
    for field, value in ((field, value) for at, field, values in CASES if at == path for value in values):
        error = await refusal(client, path, {field: value})
        assert error["type"] == "invalid_request_error"
        assert (error["param"] or "").split(".")[0] == field, value
        assert field in error["message"]
    assert generator.requests == []


@pytest.mark.parametrize("path", BODIES)
async def test_the_error_of_a_number_out_of_range_has_the_range_and_the_number(client, path):
    for field, (values, said) in (NUMBERS | INTEGERS).items():
        for value in values:
            message = (await refusal(client, path, {field: value}))["message"]
            assert value == HUGE or (said in message and f"got {value}" in message)


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("literal", [b"NaN", b"Infinity", b"-Infinity"])
async def test_what_json_has_no_word_for_is_no_json(client, generator, path, literal):
    for field in (*NUMBERS, *INTEGERS, "logit_bias"):
        content = json.dumps(BODIES[path])[:-1].encode() + b', "' + field.encode() + b'": ' + literal + b"}"
        error = await refusal(client, path, content)
        assert (error["code"], error["param"]) == ("invalid_json", field)
        assert f"{field}: {literal.decode()} is not a number" in error["message"]
    assert generator.requests == []


@pytest.mark.parametrize("path", BODIES)
async def test_an_infinite_number_written_in_digits_is_refused_by_its_field(client, path):
    for field in NUMBERS:
        content = json.dumps(BODIES[path])[:-1].encode() + b', "' + field.encode() + b'": 1e999}'
        assert (await refusal(client, path, content))["param"] == field
    content = json.dumps(BODIES[path])[:-1].encode() + b', "logit_bias": {"5": -1e999}}'
    assert (await refusal(client, path, content))["param"] == "logit_bias.5"


CONTRADICTIONS = [
    (TEXT, {"min_tokens": 17}, "min_tokens", "at most max_tokens (16)"),
    (CHAT, {"min_tokens": 3, "max_completion_tokens": 2}, "min_tokens", "at most max_tokens (2)"),
    (TEXT, {"prompt_logprobs": 0, "stream": True}, "prompt_logprobs", "not supported in streams"),
    (CHAT, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", "not supported in streams"),
    (CHAT, {"top_logprobs": 1}, "top_logprobs", "with logprobs=true"),
    (CHAT, {"top_logprobs": 1, "logprobs": False}, "top_logprobs", "with logprobs=true"),
    (CHAT, {"top_logprobs": 21, "logprobs": True}, "top_logprobs", "from 0 to 20, got 21"),
    (CHAT, {"top_logprobs": -1, "logprobs": True}, "top_logprobs", "from 0 to 20, got -1"),
    (CHAT, {"top_logprobs": "2", "logprobs": True}, "top_logprobs", "valid integer"),
    (TEXT, {"max_tokens": 0, "echo": False}, "max_tokens", "it needs echo=true"),
    (TEXT, {"max_tokens": 0, "echo": True, "min_tokens": 1}, "min_tokens", "at most max_tokens (0)"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "from 1 to"),
    (TEXT, {"best_of": 2, "n": 3}, "best_of", "from n (3) to 128, got 2"),
    (TEXT, {"logit_bias": {"5": 100.5}}, "logit_bias", "[-100, 100], got 100.5"),
    (TEXT, {"logit_bias": {"384": 1}}, "logit_bias", "0 to 383, got 384"),
    (TEXT, {"logit_bias": {"x": 1}}, "logit_bias", "got 'x'"),
    (CHAT, {"allowed_token_ids": [5, 999]}, "allowed_token_ids", "0 to 383, got 999"),
    (CHAT, {"stop_token_ids": [5, 999]}, "stop_token_ids", "0 to 383, got 999"),
    (CHAT, {"bad_words": ["x"] * 257}, "bad_words", "at most 256 items, got 257"),
    (CHAT, {"bad_words": ["ab " * 80]}, "bad_words", "1 to 64 tokens"),
]


async def test_the_error_of_conflicting_fields_names_the_conflict(client, generator):
    for path, fields, param, said in CONTRADICTIONS:
        error = await refusal(client, path, fields)
        assert error["param"] == param
        assert said in error["message"]
    assert generator.requests == []


async def test_null_is_the_default_everywhere(client, generator):
    for path, body in BODIES.items():
        fields = {field for at, field, _ in CASES if at == path} - {"prompt", "messages"}
        response = await client.post(path, json=body | dict.fromkeys(fields))
        assert response.status_code == 200, response.text
    assert len(generator.requests) == 2


@pytest.mark.parametrize("tool_calls", ["x", 1, True, {}, ["x"], [None], [{}] * 4097])
async def test_tool_calls_of_a_message_must_be_a_list_of_objects(client, generator, tool_calls):
    message = {"role": "assistant", "content": "hello", "tool_calls": tool_calls}
    error = await refusal(client, CHAT, {"messages": [message]})
    assert (error["type"], error["param"][:21]) == ("invalid_request_error", "messages.0.tool_calls")
    assert generator.requests == []

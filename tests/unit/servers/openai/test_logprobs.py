"""Log probabilities and echoes as clients see them, whole and streamed."""

import json

import pytest

from support.fakes.fake_generator import FakeGenerator, scored

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")


def events(text: str) -> list[dict]:
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


async def whole(client, path, **fields) -> dict:
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


async def streamed(client, path, **fields) -> tuple[list[dict], dict]:
    """The choices of a stream, put together as a client would, and the usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = events((await client.post(path, json=fields | options)).text)
    choices: dict[int, dict] = {}
    for part in (choice for chunk in chunks for choice in chunk["choices"]):
        choice = choices.setdefault(part["index"], {"text": "", "logprobs": None, "finish_reason": None})
        choice["text"] += part["text"] if "text" in part else part["delta"].get("content", "")
        if part["logprobs"] is not None:
            choice["logprobs"] = choice["logprobs"] or {key: [] for key in part["logprobs"]}
            for key, values in part["logprobs"].items():
                choice["logprobs"][key] = None if values is None else choice["logprobs"][key] + values
        choice["finish_reason"] = part["finish_reason"] or choice["finish_reason"]
    return [choices[index] for index in sorted(choices)], chunks[-1]["usage"]


async def test_a_completions_log_probabilities_are_parallel_lists(client, models):
    name = models["org/tiny"].tokenizer.token_text
    (choice,) = (await whole(client, TEXT, prompt="hello", logprobs=3))["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 1, 2],
        "token_logprobs": [-1.0, -1.0, -1.0],
        "tokens": [name(token_id).text for token_id in (10, 11, 12)],
        "top_logprobs": [
            {name(token_id).text: -1.0, name(token_id + 1).text: -0.5, name(token_id + 2).text: -3.0}
            for token_id in (10, 11, 12)
        ],
    }


@pytest.mark.parametrize(("logprobs", "num_keys"), [(0, 1), (1, 2), (2, 2), (20, 20)])
async def test_the_chosen_token_is_always_among_the_top_logprobs(client, logprobs, num_keys):
    (choice,) = (await whole(client, TEXT, prompt="hello", logprobs=logprobs))["choices"]
    reported = choice["logprobs"]
    for token, logprob, top in zip(
        reported["tokens"], reported["token_logprobs"], reported["top_logprobs"], strict=True
    ):
        assert top[token] == logprob
        assert len(top) == num_keys


async def test_a_chats_log_probabilities_are_entries(client, models):
    name = models["org/tiny"].tokenizer.token_text
    (choice,) = (await whole(client, CHAT, **HELLO, logprobs=True, top_logprobs=1))["choices"]
    assert choice["logprobs"]["refusal"] is None
    assert choice["logprobs"]["content"][1] == {
        "token": name(11).text,
        "logprob": -1.0,
        "bytes": list(name(11).utf8),
        "top_logprobs": [{"token": name(12).text, "logprob": -0.5, "bytes": list(name(12).utf8)}],
    }
    (plain,) = (await whole(client, CHAT, **HELLO, logprobs=True))["choices"]
    assert [entry["top_logprobs"] for entry in plain["logprobs"]["content"]] == [[]] * 3


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (TEXT, {"prompt": "hello", "logprobs": 2}),
        (TEXT, {"prompt": ["hello", "a b"], "n": 2, "logprobs": 0}),
        (TEXT, {"prompt": ["hello", "a b"], "n": 2, "echo": True}),
        (TEXT, {"prompt": ["hello", "a b"], "n": 2, "echo": True, "logprobs": 5}),
        (TEXT, {"prompt": "hello", "echo": True, "logprobs": 1, "max_tokens": 0}),
        (TEXT, {"prompt": [5, 6, 7], "echo": True, "logprobs": 1, "return_tokens_as_token_ids": True}),
        (CHAT, HELLO | {"n": 3, "logprobs": True, "top_logprobs": 4}),
        (CHAT, HELLO | {"logprobs": True, "return_tokens_as_token_ids": True}),
    ],
)
async def test_a_stream_has_the_logprobs_of_a_whole_answer(client, generator, path, fields):
    generator.pieces = ("日", "", "本 🇯🇵", ".")
    body = await whole(client, path, **fields)
    choices, usage = await streamed(client, path, **fields)
    assert usage == body["usage"]
    assert len(choices) == len(body["choices"])
    for ours, theirs in zip(choices, body["choices"], strict=True):
        assert ours["text"] == (theirs["text"] if path == TEXT else theirs["message"]["content"])
        assert ours["logprobs"] == theirs["logprobs"]
        assert ours["finish_reason"] == theirs["finish_reason"]


async def test_tokens_without_text_have_their_log_probabilities_in_a_chunk_of_their_own(client, generator):
    generator.pieces = ("a", "")
    chunks = events((await client.post(CHAT, json=HELLO | {"stream": True, "logprobs": True})).text)
    reported = [
        choice["logprobs"] and len(choice["logprobs"]["content"]) for chunk in chunks for choice in chunk["choices"]
    ]
    assert reported == [None, 1, 1, None]
    assert chunks[2]["choices"][0]["delta"] == {"content": ""}


async def test_without_the_field_there_are_no_logprobs(client, generator: FakeGenerator):
    for path, fields in ((TEXT, {"prompt": "hello"}), (CHAT, HELLO), (CHAT, HELLO | {"logprobs": False})):
        body = await whole(client, path, **fields)
        assert body["choices"][0]["logprobs"] is None
        assert (body | body["choices"][0])["prompt_logprobs"] is None
        assert generator.requests[-1].sampling_params.logprobs is None


# Echo


async def test_an_echo_puts_the_prompt_before_every_choice(client):
    body = await whole(client, TEXT, prompt=["one ", "two <|im_end|>"], n=2, echo=True)
    assert [choice["text"] for choice in body["choices"]] == [
        *["one Hello there!"] * 2,
        *["two <|im_end|>Hello there!"] * 2,
    ]
    assert body["usage"]["completion_tokens"] == 12


@pytest.mark.parametrize(("skips", "end"), [(True, ""), (False, "<|im_end|>")])
async def test_echoed_token_ids_are_decoded(client, models, skips, end):
    tokenizer = models["org/tiny"].tokenizer
    prompt = [*tokenizer.encode("hello"), 2]
    body = await whole(client, TEXT, prompt=prompt, echo=True, skip_special_tokens=skips, max_tokens=0)
    assert body["choices"][0]["text"] == "hello" + end


async def test_an_echo_with_log_probabilities_scores_the_prompt(client, generator, models):
    tokenizer = models["org/tiny"].tokenizer
    prompt = tokenizer.encode("hello world")
    (choice,) = (await whole(client, TEXT, prompt="hello world", echo=True, logprobs=2))["choices"]
    reported = choice["logprobs"]
    assert generator.requests[0].sampling_params.prompt_logprobs == 2
    assert {len(reported[name]) for name in LISTS} == {len(prompt) + 3}
    assert (reported["token_logprobs"][0], reported["top_logprobs"][0]) == (None, None)
    assert reported["token_logprobs"][1:] == [-1.0] * (len(prompt) + 2)
    assert "".join(reported["tokens"][: len(prompt)]) == "hello world"
    for token, offset in zip(reported["tokens"][: len(prompt)], reported["text_offset"], strict=False):
        assert choice["text"].startswith(token, offset)


async def test_a_prompt_can_be_scored_without_a_single_new_token(client, generator):
    for stream in (False, True):
        fields = {"prompt": "hello world", "echo": True, "logprobs": 0, "max_tokens": 0}
        if stream:
            (choice,), usage = await streamed(client, TEXT, **fields)
        else:
            body = await whole(client, TEXT, **fields)
            (choice,), usage = body["choices"], body["usage"]
        assert (choice["text"], choice["finish_reason"]) == ("hello world", "length")
        assert choice["logprobs"]["token_logprobs"][0] is None
        assert (usage["completion_tokens"], usage["total_tokens"]) == (0, usage["prompt_tokens"])
    assert {request.sampling_params.max_tokens for request in generator.requests} == {0}


async def test_a_prompt_that_fills_the_context_can_be_scored(client, generator):
    generator.max_model_len = 8
    body = await whole(client, TEXT, prompt=[5] * 8, echo=True, logprobs=1, max_tokens=0)
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 8


async def test_every_choice_of_a_stream_begins_with_its_echo(client):
    fields = {"prompt": ["one ", "two "], "n": 2, "echo": True, "stream": True}
    chunks = events((await client.post(TEXT, json=fields)).text)
    first = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            first.setdefault(choice["index"], choice["text"])
    assert first == {0: "one ", 1: "one ", 2: "two ", 3: "two "}


async def test_a_generator_that_does_not_score_is_an_inner_failure(client, generator):
    generator.scores_prompts = False
    for stream in (False, True):
        fields = {"prompt": "hello", "echo": True, "logprobs": 0, "stream": stream}
        response = await client.post(TEXT, json=fields)
        assert (response.status_code, response.json()["error"]["code"]) == (500, "generation_failed")


async def test_a_timeout_before_prompt_logprobs_is_an_error(client, generator):
    generator.scores_prompts, generator.finish_reason, generator.pieces = False, "timeout", ("",)
    response = await client.post(TEXT, json={"prompt": "hello", "echo": True, "logprobs": 0, "stream": True})
    assert (response.status_code, response.json()["error"]["code"]) == (504, "timeout")


@pytest.mark.parametrize("skips", [True, False])
async def test_offsets_count_special_tokens_only_where_they_are_shown(client, skips):
    fields = {"echo": True, "logprobs": 0, "skip_special_tokens": skips}
    (choice,) = (await whole(client, TEXT, prompt=[60, 2, 61], **fields))["choices"]
    assert choice["logprobs"]["tokens"][1] == "<|im_end|>"
    assert choice["logprobs"]["text_offset"][:3] == ([0, 1, 1] if skips else [0, 1, 11])


# Prompts' log probabilities beside the choices


async def test_prompt_log_probabilities_come_by_token_id_once_for_each_prompt(client, models):
    name = models["org/tiny"].tokenizer.token_text
    body = await whole(client, TEXT, prompt=[[5, 6], [7, 8]], n=2, prompt_logprobs=1)
    assert [choice.get("prompt_logprobs") for choice in body["choices"]] == [
        [
            None,
            {
                "6": {"logprob": -1.0, "rank": 2, "decoded_token": name(6).text},
                "7": {"logprob": -0.5, "rank": 1, "decoded_token": name(7).text},
            },
        ],
        None,
        [
            None,
            {
                "8": {"logprob": -1.0, "rank": 2, "decoded_token": name(8).text},
                "9": {"logprob": -0.5, "rank": 1, "decoded_token": name(9).text},
            },
        ],
        None,
    ]


async def test_a_chats_prompt_log_probabilities_stand_beside_its_choices(client, generator):
    body = await whole(client, CHAT, **HELLO, prompt_logprobs=0)
    prompt = generator.requests[0].prompt_token_ids
    assert [list(place) for place in body["prompt_logprobs"][1:]] == [[str(token_id)] for token_id in prompt[1:]]
    assert body["choices"][0]["logprobs"] is None


async def test_echo_and_prompt_log_probabilities_may_ask_for_different_numbers(client, generator):
    fields = {"prompt": [5, 6], "echo": True, "logprobs": 1, "prompt_logprobs": 4, "max_tokens": 0}
    (choice,) = (await whole(client, TEXT, **fields))["choices"]
    assert generator.requests[0].sampling_params.prompt_logprobs == 4
    assert len(choice["prompt_logprobs"][1]) == 4 == len(scored(6, 4))
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2


async def test_requests_for_too_many_logprobs_are_refused(client, generator):
    generator.max_model_len = 30_000
    cases = (
        (TEXT, {"prompt": [5] * 20_000, "prompt_logprobs": 20}, "prompt_logprobs", "prompts"),
        (TEXT, {"prompt": [5] * 20_000, "echo": True, "logprobs": 0, "n": 24, "max_tokens": 0}, "logprobs", "prompts"),
        (TEXT, {"prompt": "hello", "logprobs": 20, "n": 100, "max_tokens": 2000}, "logprobs", "answers"),
        (CHAT, HELLO | {"logprobs": True, "top_logprobs": 20, "n": 128}, "logprobs", "answers"),
    )
    for path, fields, param, of in cases:
        response = await client.post(path, json=fields)
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, param)
        assert f"tokens of {of}" in error["message"]
    assert generator.requests == []
    fields = HELLO | {"logprobs": True, "top_logprobs": 20, "n": 128, "stream": True}
    assert (await client.post(CHAT, json=fields)).status_code == 200  # a stream keeps nothing
    fields = HELLO | {"logprobs": True, "max_tokens": 2**31 - 1}
    assert (await client.post(CHAT, json=fields)).status_code == 200  # the context ends it long before


async def test_a_long_answer_is_written_like_a_short_one(client, generator):
    generator.max_model_len = 10_000
    generator.pieces = ("x",) * 1200
    fields = {"prompt": [5] * 1500, "echo": True, "logprobs": 1, "max_tokens": 1200}
    (choice,) = (await whole(client, TEXT, **fields))["choices"]
    assert {len(choice["logprobs"][name]) for name in LISTS} == {2700}
    ((other,), _) = await streamed(client, TEXT, **fields)
    assert other["logprobs"] == choice["logprobs"]

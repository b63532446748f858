from dataclasses import replace

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers.processors import TemplateProcessing

from rayinfer.errors import EngineDead, QueueFull
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.tokenizer import Tokenizer

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PART = [{"type": "text", "text": "a"}]
HELLO = [{"role": "user", "content": "hello"}]


def text(**fields: object) -> dict[str, object]:
    return {"prompt": "hello", **fields}


def chat(**fields: object) -> dict[str, object]:
    return {"messages": HELLO, **fields}


UNSUPPORTED = "unsupported_parameter"
BAD_BODIES = [
    # path, body, status, param, code, part of the message
    (TEXT, text(model="gone"), 404, "model", "model_not_found", "'gone' does not exist"),
    (CHAT, chat(model="gone"), 404, "model", "model_not_found", "org/tiny"),
    (TEXT, text(model=7), 400, "model", None, "valid string"),
    (TEXT, {}, 400, "prompt", None, "required"),
    (TEXT, {"prompt": None}, 400, "prompt", None, "must be a string"),
    (TEXT, {"prompt": ""}, 400, "prompt", None, "must not be empty"),
    (TEXT, {"prompt": []}, 400, "prompt", None, "must not be empty"),
    (TEXT, {"prompt": ["a", ""]}, 400, "prompt", None, "must not be empty"),
    (TEXT, {"prompt": [[1], []]}, 400, "prompt", None, "must not be empty"),
    (TEXT, {"prompt": ["a", 1]}, 400, "prompt", None, "only strings"),
    (TEXT, {"prompt": [1, "a"]}, 400, "prompt", None, "position 1 is not an integer"),
    (TEXT, {"prompt": [1, True]}, 400, "prompt", None, "position 1 is not an integer"),
    (TEXT, {"prompt": [1.5]}, 400, "prompt", None, "only strings"),
    (TEXT, {"prompt": {"a": 1}}, 400, "prompt", None, "must be a string"),
    (TEXT, {"prompt": [5, 384]}, 400, "prompt", None, "0 to 383, got 384 at position 1"),
    (TEXT, {"prompt": [[5], [-1]]}, 400, "prompt", None, "got -1"),
    (TEXT, {"prompt": ["a"] * 1025}, 400, "prompt", None, "at most 1024 prompts, got 1025"),
    (TEXT, {"prompt": ["a"] * 9, "n": 128}, 400, "n", None, "9 prompts with n=128 make 1152 choices"),
    (TEXT, {"prompt": [None] * 1025}, 400, "prompt", None, "at most 1024 prompts, got 1025"),
    (
        TEXT,
        {"prompt": [*[5] * 256, "x"]},
        400,
        "prompt",
        "context_length_exceeded",
        "The prompt is too long: it has 257 tokens",
    ),
    (TEXT, {"prompt": "x" * 9000}, 400, "prompt", "context_length_exceeded", "The prompt is too long: it has at least"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x" * 9000}]},
        *(400, "messages", "context_length_exceeded", "The prompt is too long: it has at least"),
    ),
    (TEXT, {"prompt": [5] * 256}, 400, "prompt", "context_length_exceeded", "maximum context length is 256 tokens."),
    (TEXT, {"prompt": "ab " * 900}, 400, "prompt", "context_length_exceeded", "maximum context length is 256 tokens."),
    (TEXT, text(max_tokens=-5), 400, "max_tokens", None, "got -5"),
    (TEXT, text(max_tokens=0), 400, "max_tokens", None, "from 1 to 2147483647, got 0 (0 is for prompts"),
    (TEXT, text(max_tokens=-1, echo=True), 400, "max_tokens", None, "from 0 to 2147483647, got -1"),
    (
        TEXT,
        {"prompt": [5] * 257, "echo": True, "max_tokens": 0},
        400,
        "prompt",
        "context_length_exceeded",
        "257 tokens.",
    ),
    (TEXT, text(max_tokens=10**12), 400, "max_tokens", None, "got 1000000000000"),
    (TEXT, text(max_tokens="x"), 400, "max_tokens", None, "valid integer"),
    (TEXT, text(max_tokens=1.5), 400, "max_tokens", None, "valid integer"),
    (TEXT, text(max_tokens=True), 400, "max_tokens", None, "valid integer"),
    (CHAT, chat(max_completion_tokens=0), 400, "max_completion_tokens", None, "max_completion_tokens must be"),
    (TEXT, text(temperature=3), 400, "temperature", None, "[0, 2], got 3"),
    (TEXT, text(temperature="0.5"), 400, "temperature", None, "valid number"),
    (TEXT, text(temperature=True), 400, "temperature", None, "valid number"),
    (TEXT, text(top_p=0), 400, "top_p", None, "(0, 1], got 0"),
    (TEXT, text(top_k=-2), 400, "top_k", None, "got -2"),
    (TEXT, text(min_p=1.5), 400, "min_p", None, "got 1.5"),
    (TEXT, text(repetition_penalty=0), 400, "repetition_penalty", None, "got 0"),
    (TEXT, text(presence_penalty=2.5), 400, "presence_penalty", None, "got 2.5"),
    (TEXT, text(frequency_penalty=-3), 400, "frequency_penalty", None, "got -3"),
    (TEXT, text(n=0), 400, "n", None, "from 1 to 128, got 0"),
    (TEXT, text(n=129), 400, "n", None, "got 129"),
    (TEXT, text(seed=2**70), 400, "seed", None, "seed must be"),
    (TEXT, text(min_tokens=5, max_tokens=4), 400, "min_tokens", None, "at most max_tokens (4), got 5"),
    (TEXT, text(stop=""), 400, "stop", None, "non-empty"),
    (TEXT, text(stop=["x"] * 17), 400, "stop", None, "at most 16"),
    (TEXT, text(stop=[1]), 400, "stop", None, "valid string"),
    (TEXT, text(stop_token_ids=[400]), 400, "stop_token_ids", None, "0 to 383, got 400"),
    (TEXT, text(stop_token_ids=["1"]), 400, "stop_token_ids.0", None, "valid integer"),
    (TEXT, text(priority=11), 400, "priority", None, "from -10 to 10, got 11"),
    (TEXT, text(cache_salt="a/b"), 400, "cache_salt", None, "1 to 128 characters"),
    (TEXT, text(cache_salt=""), 400, "cache_salt", None, "1 to 128 characters"),
    (TEXT, text(stream="yes"), 400, "stream", None, "valid boolean"),
    (TEXT, text(stream_options={"include_usage": True}), 400, "stream_options", None, "stream=true"),
    (
        TEXT,
        text(stream=True, stream_options={"include_usage": 1}),
        400,
        "stream_options.include_usage",
        None,
        "boolean",
    ),
    (TEXT, text(best_of=2, n=3), 400, "best_of", None, "from n (3) to 128, got 2"),
    (TEXT, text(best_of=2, stream=True), 400, "best_of", None, "must be n in a stream"),
    (TEXT, text(best_of=2, use_beam_search=True), 400, "best_of", UNSUPPORTED, "must be n with use_beam_search"),
    (TEXT, text(top_logprobs=5), 400, "top_logprobs", UNSUPPORTED, "by this endpoint"),
    (CHAT, chat(echo=True), 400, "echo", UNSUPPORTED, "by this endpoint"),
    (TEXT, text(logprob_token_ids=[5]), 400, "logprob_token_ids", None, "only allowed with logprobs"),
    (TEXT, text(suffix="end"), 400, "suffix", UNSUPPORTED, "suffix"),
    (TEXT, text(guided_json={}), 400, "guided_json", UNSUPPORTED, "structured_outputs"),
    (TEXT, text(structured_outputs={"regex": "a"}), 400, "structured_outputs", UNSUPPORTED, "structured_outputs"),
    (TEXT, text(tools=[{}]), 400, "tools", UNSUPPORTED, "by this endpoint"),
    (CHAT, chat(tools=[{"type": "function"}]), 400, "tools.0.function", None, "object"),
    (CHAT, chat(tool_choice="required"), 400, "tool_choice", None, "only allowed with tools"),
    (CHAT, chat(functions=[{}]), 400, "functions", UNSUPPORTED, "tools"),
    (CHAT, chat(function_call="auto"), 400, "function_call", UNSUPPORTED, "tool_choice"),
    (CHAT, chat(response_format={"type": "json_object"}), 400, "response_format", UNSUPPORTED, "response_format"),
    (CHAT, chat(chat_template="x"), 400, "chat_template", UNSUPPORTED, "chat_template"),
    (CHAT, {}, 400, "messages", None, "required"),
    (CHAT, {"messages": []}, 400, "messages", None, "at least one message"),
    (CHAT, {"messages": [{"role": "user", "content": "a"}] * 4097}, 400, "messages", None, "at most 4096 items"),
    (CHAT, {"messages": [{"role": "user", "content": PART * 4097}]}, 400, "messages.0.content", None, "at most 4096"),
    (CHAT, {"messages": [{"role": "user", "content": PART * 2049}] * 2}, 400, "messages", None, "parts of content"),
    (
        CHAT,
        {"messages": [{"role": "assistant", "tool_calls": [{}] * 2049}] * 2},
        *(400, "messages", None, "at most 4096 tool_calls, got 4098"),
    ),
    (
        CHAT,
        {"messages": [HELLO[0], HELLO[0] | {str(number): 1 for number in range(63)}]},
        *(400, "messages.1", None, "at most 64 fields, got 65"),
    ),
    (
        CHAT,
        chat(chat_template_kwargs={str(number): 1 for number in range(65)}),
        *(400, "chat_template_kwargs", None, "at most 64 items"),
    ),
    (TEXT, text(stop_token_ids=[5] * 4097), 400, "stop_token_ids", None, "at most 4096 items"),
    (CHAT, {"messages": "hi"}, 400, "messages", None, "valid list"),
    (CHAT, {"messages": ["hi"]}, 400, "messages.0", None, "messages.0"),
    (CHAT, {"messages": [*HELLO, {"role": "king", "content": "x"}]}, 400, "messages.1.role", None, "'assistant'"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages.0.content", None, "required for the role user"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, 400, "messages.0.content", None, "valid string"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        *(400, "messages.0.content.0.type", UNSUPPORTED, "'image_url' is not supported"),
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        *(400, "messages.0.content.0.text", None, "must be a string"),
    ),
    (CHAT, {"messages": [{"role": "user", "content": "ab " * 900}]}, 400, "messages", "context_length_exceeded", "256"),
    (
        CHAT,
        chat(add_generation_prompt=True, continue_final_message=True),
        *(400, "continue_final_message", None, "cannot both be true"),
    ),
    (CHAT, chat(chat_template_kwargs={"messages": []}), 400, "chat_template_kwargs.messages", None, "must not set"),
    (CHAT, chat(chat_template_kwargs=[]), 400, "chat_template_kwargs", None, "an object, got a list"),
]


@pytest.mark.parametrize(("path", "body", "status", "param", "code", "reported"), BAD_BODIES)
async def test_a_bad_body_is_refused_by_field(client, generator, path, body, status, param, code, reported):
    response = await client.post(path, json=body)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (status, param, code)
    assert reported in error["message"]
    assert error["type"] == "invalid_request_error"
    assert len(response.content) < 1500
    assert generator.requests == []


async def test_a_source_of_an_encoder_may_fill_the_context(client, generator):
    generator.is_encoder_decoder = True
    assert (await client.post(TEXT, json=text(prompt=[5] * 256))).status_code == 200
    response = await client.post(TEXT, json=text(prompt=[5] * 257))
    message = "maximum context length is 256 tokens. The prompt is too long: it has 257 tokens."
    assert message in response.json()["error"]["message"]


async def test_fields_that_ask_for_nothing_are_fine(client):
    nothing = {"logprobs": False, "top_logprobs": 0, "tools": None, "tool_choice": "none", "logit_bias": {}}
    ignored = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "brand_new_field": [1]}
    formats = {"response_format": {"type": "text"}, "modalities": ["text"], "n": None, "stop": None, "seed": None}
    response = await client.post(CHAT, json=chat(**nothing, **ignored, **formats))
    assert response.status_code == 200, response.text
    response = await client.post(TEXT, json=text(logprobs=None, echo=False, suffix="", best_of=2, n=2))
    assert response.status_code == 200, response.text


async def test_a_whole_completion_is_worded_exactly(client, models):
    num_prompt_tokens = len(models["org/tiny"].tokenizer.encode("hello"))
    body = (await client.post(TEXT, json=text(), headers={"x-request-id": "mine"})).json()
    assert body.pop("created") > 1_700_000_000
    assert body == {
        "id": "cmpl-mine",
        "object": "text_completion",
        "model": "org/tiny",
        "choices": [
            {
                "index": 0,
                "text": "Hello there!",
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "token_ids": None,
                "prompt_token_ids": None,
                "prompt_logprobs": None,
            }
        ],
        "usage": {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": num_prompt_tokens + 3,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
        "system_fingerprint": "rayinfer-0.1.0",
    }


async def test_a_whole_chat_completion_is_worded_exactly(client, generator):
    generator.finish_reason, generator.stop_reason, generator.num_cached_tokens = "length", 7, 4
    body = (await client.post(CHAT, json=chat(request_id="from the body"))).json()
    assert body["id"] == "chatcmpl-fromthebody"
    assert body["object"] == "chat.completion"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there!", "refusal": None},
            "logprobs": None,
            "finish_reason": "length",
            "stop_reason": 7,
            "token_ids": None,
        }
    ]
    assert (body["prompt_token_ids"], body["prompt_logprobs"]) == (None, None)
    assert "service_tier" not in body
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


async def test_choices_are_numbered_prompt_by_prompt(client, generator):
    body = (await client.post(TEXT, json={"prompt": ["one", "two"], "n": 3})).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3, 4, 5]
    assert {choice["text"] for choice in body["choices"]} == {"Hello there!"}
    assert len(generator.requests) == 2
    prompts = [request.prompt_token_ids for request in generator.requests]
    assert prompts[0] != prompts[1]
    assert body["usage"]["prompt_tokens"] == sum(map(len, prompts))  # once per prompt, not per choice
    assert body["usage"]["completion_tokens"] == 18


@pytest.mark.parametrize("prompt", [[5, 6, 7], [[5, 6, 7], [8]]])
async def test_token_ids_are_taken_as_they_are(client, generator, prompt):
    response = await client.post(TEXT, json={"prompt": prompt, "return_token_ids": True})
    expected = prompt if isinstance(prompt[0], list) else [prompt]
    assert [request.prompt_token_ids for request in generator.requests] == expected
    choices = response.json()["choices"]
    assert [choice["prompt_token_ids"] for choice in choices] == expected
    assert choices[0]["token_ids"] == [10, 11, 12]


async def test_every_setting_reaches_the_generator(client, generator, models):
    settings = {
        **{"n": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1},
        **{"presence_penalty": 0.2, "frequency_penalty": -0.2, "seed": 7, "max_tokens": 9, "min_tokens": 2},
        **{"stop": ["a", "b"], "stop_token_ids": [3], "ignore_eos": True, "include_stop_str_in_output": True},
        **{"skip_special_tokens": False, "typical_p": 0.8, "allowed_token_ids": [4, 5], "bad_words": ["x y"]},
        "prompt_logprobs": 3,
    }
    fields = {**settings, "logit_bias": {"7": -1.5, "383": 100}, "priority": -3, "cache_salt": "tenant-1"}
    params = SamplingParams(**settings, logit_bias={7: -1.5, 383: 100.0}, logprobs=2)
    params = params.with_tokenized_bad_words(bad_word_tokenizer(models["org/tiny"].tokenizer))
    await client.post(TEXT, json=text(**fields, logprobs=2))
    await client.post(CHAT, json=chat(**fields, logprobs=True, top_logprobs=2))
    for request in generator.requests:
        assert request.sampling_params == params
        assert (request.priority, request.cache_salt) == (-3, "tenant-1")


async def test_without_a_limit_a_completion_has_16_tokens_and_a_chat_what_the_context_leaves(client, generator):
    await client.post(TEXT, json=text(max_tokens=None))
    await client.post(CHAT, json=chat(max_tokens=None))
    await client.post(CHAT, json=chat(max_tokens=5, max_completion_tokens=4))
    assert [request.sampling_params.max_tokens for request in generator.requests] == [16, None, 4]


async def test_ids_inside_are_ours_even_when_clients_choose_the_same(client, generator):
    for _ in range(2):
        await client.post(TEXT, json=text(), headers={"x-request-id": "same"})
    first, second = (request.request_id for request in generator.requests)
    assert first != second
    assert "same" not in first


async def test_the_request_id_of_the_body_wins_over_the_headers_and_both_are_echoed(client):
    response = await client.post(TEXT, json=text(request_id="body"), headers={"x-request-id": "header"})
    assert (response.headers["x-request-id"], response.json()["id"]) == ("body", "cmpl-body")
    response = await client.post(TEXT, json=text(), headers={"x-request-id": "header"})
    assert (response.headers["x-request-id"], response.json()["id"]) == ("header", "cmpl-header")


async def test_a_conversation_is_rendered_by_the_models_template(client, generator, models):
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Where"}, {"type": "text", "text": " is it?"}]},
        {"role": "assistant", "content": None, "tool_calls": []},
    ]
    await client.post(CHAT, json={"messages": messages})
    prompt = models["org/tiny"].tokenizer.decode(generator.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere is it?<|im_end|>\n"
        "<|im_start|>assistant\n<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_final_message_can_be_continued(client, generator, models):
    messages = [*HELLO, {"role": "assistant", "content": "Once upon"}]
    await client.post(CHAT, json={"messages": messages, "continue_final_message": True})
    prompt = models["org/tiny"].tokenizer.decode(generator.requests[0].prompt_token_ids, skip_special_tokens=False)
    assert prompt.endswith("<|im_start|>assistant\nOnce upon")


async def test_refusals_of_the_generator_are_json_even_for_streams(client, generator):
    for refusal, status in ((QueueFull("full", retry_after_s=3.0), 429), (EngineDead("gone"), 503)):
        generator.refusal = refusal
        for fields in ({}, {"stream": True}, {"prompt": ["a", "b"], "stream": True}):
            response = await client.post(TEXT, json=text(**fields))
            assert response.status_code == status
            assert response.headers["content-type"] == "application/json"
            assert int(response.headers["retry-after"]) >= 1


async def test_a_choice_that_ends_badly_is_an_error(client, generator):
    for reason, status in (("error", 500), ("timeout", 504), ("abort", 503), (None, 500)):
        generator.finish_reason = reason
        response = await client.post(CHAT, json=chat())
        assert response.status_code == status, reason
        assert response.json()["error"]["code"]


async def test_one_bad_request_harms_no_other(client, generator):
    good = await client.post(TEXT, json=text())
    bad = await client.post(TEXT, json={"prompt": ["fine", [1, 2]]})
    again = await client.post(TEXT, json=text())
    assert [response.status_code for response in (good, bad, again)] == [200, 400, 200]
    assert len(generator.requests) == 2


async def test_a_long_text_is_tokenized_like_a_short_one(client, generator, models):
    generator.max_model_len = 100_000
    long_text = "the quick brown fox " * 600
    await client.post(TEXT, json={"prompt": long_text})
    assert generator.requests[0].prompt_token_ids == models["org/tiny"].tokenizer.encode(long_text)


async def test_a_request_may_ask_for_1024_choices(client, generator):
    response = await client.post(TEXT, json={"prompt": ["a"] * 8, "n": 128})
    assert len(response.json()["choices"]) == 1024


async def test_long_prompts_are_tokenized_in_their_order_beside_short_ones(client, generator, models):
    generator.max_model_len = 100_000
    prompts = ["the quick brown fox " * 600, "short", "a" * 20]
    await client.post(TEXT, json={"prompt": prompts})
    tokenizer = models["org/tiny"].tokenizer
    assert [request.prompt_token_ids for request in generator.requests] == [tokenizer.encode(text) for text in prompts]


@pytest.mark.parametrize(("wanted", "is_added"), [(None, True), (True, True), (False, False)])
async def test_a_plain_prompt_gets_special_tokens_unless_switched_off(
    client, generator, models, tokenizer_folder, wanted, is_added
):
    backend = Backend.from_file(str(tokenizer_folder / "tokenizer.json"))
    backend.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    models["org/tiny"] = replace(models["org/tiny"], tokenizer=Tokenizer(backend))
    await client.post(TEXT, json=text(add_special_tokens=wanted))
    await client.post(CHAT, json=chat())
    plain, conversation = (request.prompt_token_ids for request in generator.requests)
    assert (plain[0] == 1) is is_added
    assert conversation.count(1) == 2  # what the template wrote, and no more


async def test_models_are_listed_with_their_context_length(client):
    card = (await client.get("/v1/models/org/tiny")).json()
    assert card["max_model_len"] == 256
    assert card["created"] == 1_700_000_000
    missing = await client.get("/v1/models/other")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")

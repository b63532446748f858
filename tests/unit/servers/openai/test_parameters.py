"""Parameters of vLLM and OpenAI beyond sampling: truncation, templates, listed tokens, and those without effect."""

from dataclasses import replace

import pytest
from httpx import ASGITransport, AsyncClient

from rayinfer.servers.app import build_app
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.tokenization.chat_template import ChatTemplate

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello"}]}
WITHOUT_EFFECT = {
    "user": "u",
    "store": True,
    "metadata": {"a": "b"},
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "verbosity": "low",
    "prediction": {"type": "content", "content": "x"},
    "parallel_tool_calls": False,
    "best_of": 1,
}


async def answer(client, path, **fields):
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


def trusting_client(models, metrics) -> AsyncClient:
    app = build_app(models, metrics, trusts_request_chat_template=True)
    return AsyncClient(transport=ASGITransport(app), base_url="http://service")


@pytest.mark.parametrize("side", [None, "left", "right"])
async def test_a_prompt_is_truncated_on_the_side_that_is_named(client, generator, side):
    await answer(client, TEXT, prompt=[3, 4, 5, 6, 7], truncate_prompt_tokens=3, truncation_side=side)
    assert generator.requests[-1].prompt_token_ids == ([3, 4, 5] if side == "right" else [5, 6, 7])


@pytest.mark.parametrize(("max_tokens", "kept"), [(1, 255), (16, 240), (300, 1)])
async def test_minus_one_keeps_as_many_tokens_as_leave_room_for_the_answer(client, generator, max_tokens, kept):
    for prompt in (list(range(3, 300)), "a b " * 2000):
        await answer(client, TEXT, prompt=prompt, max_tokens=max_tokens, truncate_prompt_tokens=-1)
        assert len(generator.requests[-1].prompt_token_ids) == kept
    assert generator.requests[-2].prompt_token_ids == list(range(3, 300))[-kept:]


async def test_a_conversation_is_truncated_after_its_template(client, generator):
    await answer(client, CHAT, **HELLO)
    await answer(client, CHAT, **HELLO, truncate_prompt_tokens=4)
    whole, cut = (request.prompt_token_ids for request in generator.requests)
    assert cut == whole[-4:]


async def test_an_echo_of_a_truncated_prompt_is_what_is_left_of_it(client, models):
    tokenizer = models["org/tiny"].tokenizer
    kept = tokenizer.encode("one two three four")[-2:]
    body = await answer(client, TEXT, prompt="one two three four", truncate_prompt_tokens=2, echo=True, logprobs=0)
    assert body["choices"][0]["text"] == tokenizer.decode(kept) + "Hello there!"
    assert len(body["choices"][0]["logprobs"]["tokens"]) == 2 + 3


@pytest.mark.parametrize("ids_without_rank", [[200, 5], [5, 200, 5]])
async def test_listed_tokens_stand_beside_the_likeliest(client, generator, models, ids_without_rank):
    name = models["org/tiny"].tokenizer.token_text
    fields = {"logprob_token_ids": ids_without_rank, "prompt": "hello", **HELLO}
    listed = list(dict.fromkeys(ids_without_rank))
    completion = (await answer(client, TEXT, logprobs=1, **fields))["choices"][0]["logprobs"]
    assert list(completion["top_logprobs"][0].values()) == [-1.0, -0.5, *(-100.0 - each for each in listed)]
    for num_top, best in ((0, []), (1, [11])):
        chat = (await answer(client, CHAT, logprobs=True, top_logprobs=num_top, **fields))["choices"][0]["logprobs"]
        top = chat["content"][0]["top_logprobs"]
        assert [entry["token"] for entry in top] == [name(each).text for each in (*best, *listed)]
    assert generator.requests[-1].sampling_params.listed_ids == tuple(listed)


async def test_the_chosen_token_is_listed_too_where_it_is_asked_for(client):
    body = await answer(client, CHAT, **HELLO, logprobs=True, logprob_token_ids=[10])
    first, second = body["choices"][0]["logprobs"]["content"][:2]
    assert [entry["logprob"] for entry in first["top_logprobs"]] == [-1.0]  # 10 itself, second at its place
    assert [entry["logprob"] for entry in second["top_logprobs"]] == [-110.0]


async def test_listed_tokens_are_streamed(client):
    body = {"prompt": "hello", "logprobs": 0, "logprob_token_ids": [200], "stream": True}
    response = await client.post(TEXT, json=body)
    assert response.text.count("-300.0") == 3


async def test_a_prompt_is_scored_over_the_whole_vocabulary_as_far_as_responses_may_grow(client, generator):
    body = await answer(client, TEXT, prompt=[3, 4, 5], prompt_logprobs=-1)
    first, *others = body["choices"][0]["prompt_logprobs"]
    assert first is None
    assert [len(place) for place in others] == [384, 384]
    generator.max_model_len = 2048
    refused = await client.post(TEXT, json={"prompt": [3] * 1000, "prompt_logprobs": -1})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert "at most 262144 log probabilities" in refused.json()["error"]["message"]


async def test_a_clients_template_is_rendered_only_where_the_service_trusts_it(client, models, metrics, generator):
    fields = HELLO | {"chat_template": "{{ messages[0].content }}!{{ extra }}", "chat_template_kwargs": {"extra": 7}}
    refused = await client.post(CHAT, json=fields)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "chat_template")
    async with trusting_client(models, metrics) as trusting:
        await answer(trusting, CHAT, **fields)
    tokenizer = models["org/tiny"].tokenizer
    assert generator.requests[-1].prompt_token_ids == tokenizer.encode("hello!7", add_special_tokens=False)


@pytest.mark.parametrize(
    ("template", "param"),
    [
        ("{% if %}", "chat_template"),
        ("(" * 10 + "{{" + "(" * 5000, "chat_template"),
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "messages"),
        ("{{ raise_exception('no') }}", "messages"),
        ("{{ messages.append(1) }}", "messages"),
    ],
)
async def test_a_template_runs_in_a_sandbox(models, metrics, generator, template, param):
    async with trusting_client(models, metrics) as client:
        refused = await client.post(CHAT, json=HELLO | {"chat_template": template})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        await answer(client, CHAT, **HELLO)
    assert len(generator.requests) == 1


async def test_documents_reach_the_template(client, models, generator):
    template = ChatTemplate({"default": "{% for each in documents %}{{ each.title }} {% endfor %}"})
    models["org/tiny"] = replace(models["org/tiny"], chat_template=template)
    await answer(client, CHAT, **HELLO, documents=[{"title": "a"}, {"title": "b"}])
    tokenizer = models["org/tiny"].tokenizer
    assert generator.requests[-1].prompt_token_ids == tokenizer.encode("a b ", add_special_tokens=False)


async def test_the_last_message_is_continued(client, models, generator):
    template = ChatTemplate({"default": "{% for each in messages %}<{{ each.content }}>{% endfor %}"})
    models["org/tiny"] = replace(models["org/tiny"], chat_template=template)
    messages = [*HELLO["messages"], {"role": "assistant", "content": "well"}]
    await answer(client, CHAT, messages=messages, continue_final_message=True)
    tokenizer = models["org/tiny"].tokenizer
    assert generator.requests[-1].prompt_token_ids == tokenizer.encode("<hello><well", add_special_tokens=False)


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("stream", [False, True])
async def test_fields_without_effect_are_accepted(client, generator, path, stream):
    fields = WITHOUT_EFFECT | {"prompt": "hello"} | HELLO | {"stream": stream}
    if stream:
        fields["stream_options"] = {"include_usage": True, "include_obfuscation": True}
    assert (await client.post(path, json=fields)).status_code == 200
    assert (await client.post(path, json=fields | dict.fromkeys(WITHOUT_EFFECT))).status_code == 200


async def test_a_chat_returns_its_service_tier_when_it_is_asked_for_one(client):
    assert (await answer(client, CHAT, **HELLO, service_tier="auto"))["service_tier"] == "default"
    streamed = await client.post(CHAT, json=HELLO | {"service_tier": "auto", "stream": True})
    assert streamed.text.count('"service_tier":"default"') == streamed.text.count("data: {")


@pytest.mark.parametrize("seed", [-(2**63), -1, 0, 2**63, 2**64 - 1])
async def test_a_seed_may_have_64_bits(client, generator, seed):
    await answer(client, TEXT, prompt="hello", seed=seed)
    assert generator.requests[-1].sampling_params.seed == seed


@pytest.mark.parametrize("path", [TEXT, CHAT])
async def test_greedy_choices_are_as_many_as_are_asked_for(client, path):
    body = await answer(client, path, prompt="hello", **HELLO, temperature=0, n=3)
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]


LIMITED = [
    ({"max_n": 2}, {"n": 3}, "n"),
    ({"max_prompts": 2}, {"prompt": ["a", "b", "c"]}, "prompt"),
    ({"max_choices": 5}, {"prompt": ["a", "b"], "n": 3}, "n"),
    ({"max_stop_strings": 1}, {"stop": ["a", "b"]}, "stop"),
    ({"max_logit_bias": 1}, {"logit_bias": {"1": 1, "2": 1}}, "logit_bias"),
    ({"max_bad_words": 1}, {"bad_words": ["a", "b"]}, "bad_words"),
    ({"max_logprobs": 3}, {"logprobs": 4}, "logprobs"),
    ({"max_logprobs": 3}, {"prompt_logprobs": 4}, "prompt_logprobs"),
    ({"max_logprob_token_ids": 1}, {"logprobs": 0, "logprob_token_ids": [1, 2]}, "logprob_token_ids"),
    ({"max_prompt_logprobs": 5}, {"prompt": [3] * 6, "prompt_logprobs": 0}, "prompt_logprobs"),
    ({"max_response_logprobs": 15}, {"logprobs": 0}, "logprobs"),
    ({"max_repeated_chars": 4}, {"echo": True}, "echo"),
    ({"max_repeated_token_ids": 1}, {"prompt": [3, 4], "return_token_ids": True}, "return_token_ids"),
]


@pytest.mark.parametrize(("limits", "fields", "param"), LIMITED, ids=lambda value: str(value))
async def test_every_limit_is_a_setting(models, metrics, client, generator, limits, fields, param):
    body = {"prompt": "hello"} | fields
    assert (await client.post(TEXT, json=body)).status_code == 200
    app = build_app(models, metrics, request_limits=RequestLimits(**limits))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://service") as limited:
        refused = await limited.post(TEXT, json=body)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        assert str(next(iter(limits.values()))) in refused.json()["error"]["message"]
        assert (await limited.post(TEXT, json={"prompt": "a", "max_tokens": 1})).status_code == 200


def test_every_limit_has_a_test():
    # Those of predictors are tested with their protocols, those of beam searches over an engine.
    elsewhere = {name for name in RequestLimits.model_fields if name.startswith(("max_image", "max_beam"))}
    elsewhere |= {"max_inputs", "max_response_numbers"}
    assert {name for limits, _, _ in LIMITED for name in limits} | elsewhere == set(RequestLimits.model_fields)

import asyncio
import json

import pytest

from rayinfer.errors import NotReady, QueueFull, RequestFailed, RequestTimedOut
from rayinfer.outputs import CompletionOutput, Logprob
from rayinfer.servers.tgi.tokens import output_tokens, top_tokens

INPUTS = {"inputs": "hello there"}  # six tokens of the tiny tokenizer


def with_parameters(**parameters):
    return INPUTS | {"parameters": parameters}


def events_of(response) -> list[dict]:
    parts = response.content.split(b"\n\n")
    assert parts.pop() == b""
    assert all(part.startswith(b"data:{") for part in parts)
    return [json.loads(part[5:]) for part in parts]


async def test_generate_answers_with_the_text_alone(client, generator):
    response = await client.post("/generate", json=INPUTS)
    assert (response.status_code, response.json()) == (200, {"generated_text": "Hello there!"})
    (request,) = generator.requests
    params = request.sampling_params
    assert (params.temperature, params.n, params.logprobs, params.max_tokens) == (0.0, 1, None, 250)
    assert len(request.prompt_token_ids) == 6


async def test_the_headers_have_counts_and_times_in_milliseconds(client):
    headers = (await client.post("/generate", json=INPUTS)).headers
    assert headers["x-compute-characters"] == "11"
    assert (headers["x-prompt-tokens"], headers["x-generated-tokens"]) == ("6", "3")
    times = ("total", "validation", "queue", "inference")
    total, *parts = (int(headers[f"x-{name}-time"]) for name in times)
    assert abs(total - sum(parts)) <= 2  # each is rounded
    assert 0 <= float(headers["x-compute-time"]) < 60
    assert int(headers["x-time-per-token"]) <= total
    assert headers["x-compute-type"]


async def test_details_hold_tokens_prompt_and_top_tokens(client, generator):
    wanted = with_parameters(details=True, decoder_input_details=True, top_n_tokens=2)
    details = (await client.post("/generate", json=wanted)).json()["details"]
    assert (details["finish_reason"], details["generated_tokens"], details["seed"]) == ("eos_token", 3, None)
    assert [token["text"] for token in details["tokens"]] == ["Hello", " there", "!"]
    assert [token["logprob"] for token in details["tokens"]] == [-1.0] * 3
    assert [set(token) for token in details["tokens"]] == [{"id", "text", "logprob", "special"}] * 3
    assert "".join(token["text"] for token in details["prefill"]) == "hello there"
    assert details["prefill"][0]["logprob"] is None
    assert [[token["logprob"] for token in top] for top in details["top_tokens"]] == [[-0.5, -1.0]] * 3
    assert generator.requests[0].sampling_params.prompt_logprobs == 0


async def test_the_best_of_several_sequences_is_answered_and_the_others_are_details(client, generator):
    wanted = with_parameters(details=True, best_of=3, do_sample=True)
    answer = (await client.post("/generate", json=wanted)).json()
    assert generator.requests[0].sampling_params.n == 3
    others = answer["details"]["best_of_sequences"]
    assert [other["generated_text"] for other in others] == ["Hello there!"] * 2
    assert {"finish_reason", "generated_tokens", "tokens", "prefill", "seed"} <= set(others[0])


async def test_the_root_answers_with_a_list_and_the_prompt_before_the_text(client):
    assert (await client.post("/", json=INPUTS)).json() == [{"generated_text": "hello thereHello there!"}]
    plain = await client.post("/", json=with_parameters(return_full_text=False))
    assert plain.json() == [{"generated_text": "Hello there!"}]
    full = await client.post("/generate", json=with_parameters(return_full_text=True))
    assert full.json() == {"generated_text": "hello thereHello there!"}


@pytest.mark.parametrize(("path", "body"), [("/generate_stream", INPUTS), ("/", INPUTS | {"stream": True})])
async def test_a_stream_has_an_event_for_each_token_and_the_text_in_the_last(client, path, body):
    response = await client.post(path, json=body | {"parameters": {"details": True, "return_full_text": False}})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-compute-characters"] == "11"
    events = events_of(response)
    assert [event["index"] for event in events] == [1, 2, 3]
    assert "".join(event["token"]["text"] for event in events) == "Hello there!"
    assert [event["generated_text"] for event in events] == [None, None, "Hello there!"]
    assert [event["details"] for event in events[:2]] == [None, None]
    assert events[2]["details"] == {
        "finish_reason": "eos_token",
        "generated_tokens": 3,
        "seed": None,
        "input_length": 6,
    }
    assert all(event["token"]["logprob"] == -1.0 for event in events)


@pytest.mark.parametrize(
    ("reason", "stop_reason", "said"),
    [
        ("stop", None, "eos_token"),
        ("stop", "!", "stop_sequence"),
        ("stop", 12, "eos_token"),
        ("length", None, "length"),
    ],
)
async def test_finish_reasons_are_those_of_tgi(client, generator, reason, stop_reason, said):
    generator.finish_reason, generator.stop_reason = reason, stop_reason
    details = (await client.post("/generate", json=with_parameters(details=True, stop=["!"]))).json()["details"]
    assert details["finish_reason"] == said


@pytest.mark.parametrize(
    ("parameters", "temperature"),
    [
        ({}, 0.0),
        ({"do_sample": False, "temperature": 1.0}, 0.0),  # as in TGI, which then has nothing to draw by
        ({"do_sample": True}, 1.0),
        ({"temperature": 0.5}, 0.5),
        ({"top_k": 5}, 1.0),
        ({"top_p": 0.5}, 1.0),
        ({"typical_p": 0.5}, 1.0),
    ],
)
async def test_tokens_are_drawn_only_where_the_request_says_so(client, generator, parameters, temperature):
    generator.default_sampling_params = {"temperature": 0.7, "top_k": 3}  # TGI has no defaults of models
    response = await client.post("/generate", json=with_parameters(details=True, **parameters))
    params = generator.requests[0].sampling_params
    assert (params.temperature, params.top_k) == (temperature, parameters.get("top_k", 0))
    assert (response.json()["details"]["seed"] is None) == (temperature == 0.0)
    assert response.json()["details"]["seed"] == params.seed


async def test_a_seed_is_passed_on_and_named(client, generator):
    wanted = with_parameters(details=True, do_sample=True, seed=2**64 - 1)
    assert (await client.post("/generate", json=wanted)).json()["details"]["seed"] == 2**64 - 1
    assert generator.requests[0].sampling_params.seed == 2**64 - 1


async def test_truncate_keeps_the_last_tokens(client, generator):
    await client.post("/generate", json=INPUTS)
    await client.post("/generate", json=with_parameters(truncate=2))
    whole, cut = (request.prompt_token_ids for request in generator.requests)
    assert cut == whole[-2:]
    long = {"inputs": "hello there " * 1000, "parameters": {"truncate": 5}}
    assert (await client.post("/generate", json=long)).status_code == 200


async def test_stop_strings_stay_in_the_text(client, generator):
    await client.post("/generate", json=with_parameters(stop=["there"]))
    params = generator.requests[0].sampling_params
    assert (params.stop, params.include_stop_str_in_output) == (("there",), True)


async def test_a_models_own_limit_holds(client, generator):
    generator.default_sampling_params = {"max_tokens": 7}
    await client.post("/generate", json=INPUTS)
    await client.post("/generate", json=with_parameters(max_new_tokens=9))
    await client.post("/generate", json=with_parameters(max_new_tokens=3))
    assert [request.sampling_params.max_tokens for request in generator.requests] == [7, 7, 3]


@pytest.mark.parametrize("value", ["off", "auto", 4])
async def test_drafts_are_a_parameter_of_their_own(client, generator, value):
    for parameters in ({}, {"do_sample": True}):
        await client.post("/generate", json=with_parameters(speculation=value, **parameters))
    assert [request.sampling_params.speculation for request in generator.requests] == [value] * 2


async def test_null_is_the_default_everywhere(client, generator):
    names = (
        "best_of temperature repetition_penalty frequency_penalty top_k top_p typical_p do_sample max_new_tokens "
        "return_full_text stop truncate watermark details decoder_input_details seed top_n_tokens grammar adapter_id "
        "speculation"
    )
    body = INPUTS | {"stream": None, "parameters": dict.fromkeys(names.split())}
    assert (await client.post("/generate", json=body)).json() == {"generated_text": "Hello there!"}
    assert (await client.post("/generate", json=INPUTS | {"parameters": None})).status_code == 200
    assert generator.requests[0].sampling_params == generator.requests[1].sampling_params


@pytest.mark.parametrize(
    ("error", "status", "error_type"),
    [
        (QueueFull("full"), 429, "overloaded"),
        (NotReady("starting"), 503, "overloaded"),
        (RequestFailed("inside"), 424, "generation"),
        (RuntimeError("inside"), 424, "generation"),
        (RequestTimedOut("late"), 504, "incomplete_generation"),
    ],
)
@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
async def test_failures_have_tgis_statuses_and_types(client, generator, path, error, status, error_type):
    generator.refusal = error
    response = await client.post(path, json=INPUTS)
    assert response.status_code == status
    assert set(response.json()) == {"error", "error_type"}
    assert response.json()["error_type"] == error_type
    assert "inside" not in response.text
    assert ("retry-after" in response.headers) == (error_type == "overloaded")


async def test_a_failure_within_a_stream_is_its_last_event(client, generator):
    generator.failure = RequestFailed("inside")
    events = events_of(await client.post("/generate_stream", json=INPUTS))
    assert len(events) == 2
    assert events[1]["error_type"] == "generation"
    assert "inside" not in events[1]["error"]


async def test_outputs_that_end_early_are_an_error_in_both_forms(client, generator):
    generator.finish_reason = None
    assert (await client.post("/generate", json=INPUTS)).json()["error_type"] == "generation"
    assert events_of(await client.post("/generate_stream", json=INPUTS))[-1]["error_type"] == "generation"


async def test_tokens_come_with_their_places_in_the_text(client):
    tokens = (await client.post("/tokenize", json=INPUTS)).json()
    assert "".join(token["text"] for token in tokens) == "hello there"
    assert all(INPUTS["inputs"][token["start"] : token["stop"]] == token["text"] for token in tokens)
    cut = (await client.post("/tokenize", json=with_parameters(truncate=2))).json()
    assert cut == tokens[-2:]


async def test_a_conversation_is_rendered_and_tokenized(client):
    for extra in ({}, {"model": "tgi"}, {"model": "org/tiny"}):
        body = {"messages": [{"role": "user", "content": "hi"}], **extra}
        answer = (await client.post("/chat_tokenize", json=body)).json()
        assert "hi" in answer["templated_text"]
        assert "".join(token["text"] for token in answer["tokenize_response"]) == answer["templated_text"]
    unknown = await client.post("/chat_tokenize", json={"messages": body["messages"], "model": "gone"})
    assert (unknown.status_code, unknown.json()["error_type"]) == (404, "not_found")


async def test_info_describes_the_model_and_the_limits(client):
    info = (await client.get("/info")).json()
    assert info["model_id"] == "org/tiny"
    assert info["model_pipeline_tag"] == "text-generation"
    assert (info["max_input_tokens"], info["max_total_tokens"]) == (255, 256)
    assert (info["max_best_of"], info["max_stop_sequences"]) == (128, 16)


@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
async def test_a_client_that_leaves_ends_its_generation(client, generator, path):
    generator.blocks_after = 0
    asking = asyncio.ensure_future(client.post(path, json=INPUTS))
    async with asyncio.timeout(5):
        await generator.has_blocked.wait()
        asking.cancel()
        await generator.has_aborted.wait()


def test_an_outputs_text_is_divided_among_its_tokens(models):
    tokenizer = models["org/tiny"].tokenizer
    end = tokenizer.eos_token_id

    def tokens(text, ids):
        return output_tokens(tokenizer, CompletionOutput(index=0, text=text, token_ids=ids))

    ids = tokenizer.encode(" there", add_special_tokens=False)
    assert [token["text"] for token in tokens(" there", ids)] == [tokenizer.token_text(i).text for i in ids]
    held_back = tokens("x there", ids)  # with text of tokens before these
    assert "".join(token["text"] for token in held_back) == "x there"
    assert [token["special"] for token in tokens("", [end])] == [True]
    assert tokens("", [end])[0]["text"] == tokenizer.token_text(end).text
    (flushed,) = tokens("held", [end])
    assert (flushed["text"], flushed["special"]) == ("held", False)
    assert "".join(token["text"] for token in tokens(" there", [*ids, end]) if not token["special"]) == " there"


def test_a_log_probability_of_minus_infinity_is_a_number(models):
    (token,) = top_tokens(models["org/tiny"].tokenizer, {7: Logprob(float("-inf"), 1)}, 1)
    assert token["logprob"] == -9999.0

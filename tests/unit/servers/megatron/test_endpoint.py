import pytest

from rayinfer.errors import NotReady, QueueFull, RequestFailed, RequestTimedOut

PROMPTS = {"prompts": ["hello", "there"]}
HUGE = 10**400


async def test_texts_come_with_their_prompts_and_in_pieces(client, generator, models):
    answer = (await client.put("/api", json=PROMPTS)).json()
    assert answer["text"] == ["helloHello there!", "thereHello there!"]
    assert set(answer) == {"text", "segments", "tokens"}
    tokenizer = models["org/tiny"].tokenizer
    assert answer["segments"] == [[tokenizer.token_text(i).text for i in ids] for ids in answer["tokens"]]
    assert answer["tokens"][0] == [*tokenizer.encode("hello", add_special_tokens=False), 10, 11, 12]
    params = generator.requests[0].sampling_params
    assert (params.max_tokens, params.temperature, params.top_k, params.top_p, params.seed) == (64, 1.0, 0, 1.0, None)


async def test_log_probabilities_are_those_of_all_tokens_but_the_first(client):
    answer = (await client.put("/api", json=PROMPTS | {"logprobs": True, "tokens_to_generate": 3})).json()
    assert [len(values) for values in answer["logprobs"]] == [len(ids) - 1 for ids in answer["tokens"]]
    assert {value for values in answer["logprobs"] for value in values} == {-1.0}


async def test_no_tokens_to_generate_scores_the_prompts(client, generator):
    answer = (await client.put("/api", json=PROMPTS | {"logprobs": True, "tokens_to_generate": 0})).json()
    assert answer["text"] == ["hello", "there"]
    assert [len(values) for values in answer["logprobs"]] == [len(ids) - 1 for ids in answer["tokens"]]
    assert generator.requests[0].sampling_params.logprobs is None


async def test_settings_are_passed_on(client, generator):
    settings = {"temperature": 0.5, "top_k": 7, "random_seed": 3, "stop_token": 9, "no_log": True}
    await client.put("/api", json=PROMPTS | settings | {"stop_on_eol": True, "stop_on_double_eol": True})
    params = generator.requests[0].sampling_params
    assert (params.temperature, params.top_k, params.seed, params.stop_ids) == (0.5, 7, 3, (9,))
    assert (params.stop, params.include_stop_str_in_output) == (("\n", "\n\n"), True)
    await client.put("/api", json=PROMPTS | {"top_p": 0.5})
    assert generator.requests[-1].sampling_params.top_p == 0.5


async def test_a_newline_after_a_colon_can_be_prevented(client, generator, models):
    await client.put("/api", json=PROMPTS | {"prevent_newline_after_colon": True})
    colon, newline = models["org/tiny"].tokenizer.encode(":\n", add_special_tokens=False)
    assert generator.requests[0].sampling_params.bad_sequences == ((colon, newline),)


async def test_prompts_may_begin_with_the_first_token(client, generator, models):
    answer = await client.put("/api", json={"prompts": ["hello", ""], "add_BOS": True})
    assert answer.status_code == 200
    first = models["org/tiny"].tokenizer.bos_token_id
    plain = models["org/tiny"].tokenizer.encode("hello", add_special_tokens=False)
    assert [request.prompt_token_ids for request in generator.requests] == [[first, *plain], [first]]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QueueFull("full"), 429),
        (NotReady("starting"), 503),
        (RequestFailed("inside"), 500),
        (RuntimeError("inside"), 500),
        (RequestTimedOut("late"), 504),
    ],
)
async def test_failures_have_a_message(client, generator, error, status):
    generator.refusal = error
    response = await client.put("/api", json=PROMPTS)
    assert response.status_code == status
    assert set(response.json()) == {"message"}
    assert "inside" not in response.text


async def test_null_is_the_default_everywhere(client, generator):
    names = (
        "tokens_to_generate logprobs temperature top_k top_p top_p_decay top_p_bound length_penalty beam_width add_BOS "
        "stop_on_eol stop_on_double_eol prevent_newline_after_colon random_seed stop_token no_log"
    )
    assert (await client.put("/api", json=PROMPTS | dict.fromkeys(names.split()))).status_code == 200
    await client.put("/api", json=PROMPTS)
    assert generator.requests[0].sampling_params == generator.requests[2].sampling_params

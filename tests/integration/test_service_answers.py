import json

import openai
import pytest


@pytest.fixture
def client(service):
    with openai.OpenAI(
        base_url=f"{service.base_url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as client:
        yield client


@pytest.fixture
def lenient_client(service):
    """For streamed completions: the client's own type for them has no room for a choice that has not ended."""
    with openai.OpenAI(base_url=f"{service.base_url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client, **fields):
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    return client.chat.completions.create(model="tiny", messages=messages, max_tokens=12, temperature=0, **fields)


def test_the_service_is_ready_and_lists_its_models(service, client):
    assert service.http.get("/health").status_code == 200
    assert service.http.get("/ready").json() == {"ready": True}
    assert sorted(model.id for model in client.models.list()) == ["other", "tiny"]


def test_an_answer_names_its_request_once(service):
    answer = service.http.get("/v1/models", headers={"X-Request-Id": "mine"})
    assert answer.headers.get_list("x-request-id") == ["mine"]


def test_a_chat_says_the_same_streamed_and_not(client):
    whole = chat(client)
    parts = list(chat(client, stream=True, stream_options={"include_usage": True}))
    streamed = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert whole.choices[0].message.content == streamed
    assert whole.usage.completion_tokens == parts[-1].usage.completion_tokens
    assert whole.usage.prompt_tokens == parts[-1].usage.prompt_tokens


def test_a_completion_says_the_same_streamed_and_not(client, lenient_client):
    settings = {"model": "tiny", "prompt": "Once upon", "max_tokens": 20, "temperature": 0}
    whole = client.completions.create(**settings)
    parts = list(lenient_client.completions.create(**settings, stream=True))
    assert whole.choices[0].text == "".join(part.choices[0].text for part in parts if part.choices)
    assert whole.choices[0].finish_reason == parts[-1].choices[0].finish_reason


def test_a_streams_tokens_arrive_one_after_the_other(service):
    body = {"model": "tiny", "prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": True}
    with service.http.stream("POST", "/v1/completions", json=body) as response:
        events = [line for line in response.iter_lines() if line.startswith("data: {")]
    assert len(events) > 20


def test_several_answers_with_a_seed_differ_and_come_again(client):
    settings = {"model": "tiny", "prompt": "Once", "max_tokens": 10, "n": 3, "seed": 5, "temperature": 1.0}
    first = [choice.text for choice in client.completions.create(**settings).choices]
    second = [choice.text for choice in client.completions.create(**settings).choices]
    assert first == second
    assert len(set(first)) == 3


def test_a_stop_string_ends_an_answer_before_it(service):
    text = service.text_of(max_tokens=40)
    stop = text[5:8]
    assert service.text_of(max_tokens=40, stop=stop) == text[: text.index(stop)]


def test_each_model_gives_its_own_answer(service):
    tiny, other = service.text_of(model="tiny", max_tokens=20), service.text_of(model="other", max_tokens=20)
    assert tiny != other


def test_an_unknown_model_is_not_found(service):
    response = service.complete(model="nonsense")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": "x" * 60_000}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"temperature": 3.5}, "temperature"),
        ({"n": "many"}, "n"),
    ],
)
def test_the_error_of_a_bad_request_names_the_field(service, fields, param):
    response = service.complete(**fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"] == param


def test_a_bad_request_among_good_ones_harms_none(service):
    expected = service.text_of()
    for bad in ({"prompt": ""}, {"max_tokens": -1}, {"model": "nonsense"}):
        assert service.complete(**bad).status_code in (400, 404)
        assert service.text_of() == expected
    assert service.http.post("/v1/completions", content=b'{"model": ').status_code == 400
    assert service.text_of() == expected


def test_a_body_above_the_limit_is_refused(service):
    body = json.dumps({"model": "tiny", "prompt": "x" * 9 * 2**20})
    response = service.http.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert response.json()["error"]["code"] == "request_too_large"


def test_the_metrics_count_what_was_done(service):
    before = {
        name: service.metric(name, model_name="tiny")
        for name in ("vllm:generation_tokens_total", "vllm:time_to_first_token_seconds_count")
    }
    finished = service.metric("vllm:request_success_total", model_name="tiny", finished_reason="length")
    service.text_of(max_tokens=11)
    assert service.metric("vllm:generation_tokens_total", model_name="tiny") == (
        before["vllm:generation_tokens_total"] + 11
    )
    assert service.metric("vllm:time_to_first_token_seconds_count", model_name="tiny") == (
        before["vllm:time_to_first_token_seconds_count"] + 1
    )
    assert service.metric("vllm:request_success_total", model_name="tiny", finished_reason="length") == finished + 1
    assert service.metric("rayinfer_kv_blocks_total", model_name="tiny") == 4096

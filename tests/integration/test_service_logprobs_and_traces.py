"""Log probabilities and traces through the whole service: HTTP, router, engine process and back."""

import pytest

from support.services.polling import wait_until

LISTS = ("text_offset", "token_logprobs", "tokens", "top_logprobs")
ENGINE_EVENTS = ["queued", "admitted", "prefill_chunk", "first_token"]


def traces_of(service, name):
    response = service.http.get(f"/v1/requests/{name}/trace")
    assert response.status_code == 200, response.text
    return response.json()["data"]


def events_of(service, name, **place):
    """The names of a request's events, once its engine has sent all of them."""
    events = []

    def has_all():
        events[:] = [
            event["name"]
            for event in traces_of(service, name)[0]["events"]
            if place.items() <= event["details"].items()
        ]
        return "queued" in events

    wait_until(has_all)
    return events


def test_a_prompt_is_scored_as_its_own_answer_was(service):
    """What greedy decoding found most likely is most likely when it is read again as a prompt."""
    (answer,) = service.complete(prompt=[5, 6, 7], max_tokens=6, logprobs=1, return_token_ids=True).json()["choices"]
    read_again = service.complete(prompt=[5, 6, 7, *answer["token_ids"]], max_tokens=0, echo=True, logprobs=1).json()
    (scored,) = read_again["choices"]
    assert scored["text"].endswith(answer["text"])
    assert scored["logprobs"]["token_logprobs"][0] is None
    assert scored["logprobs"]["tokens"][3:] == answer["logprobs"]["tokens"]
    assert scored["logprobs"]["token_logprobs"][3:] == pytest.approx(answer["logprobs"]["token_logprobs"], abs=1e-4)
    assert read_again["usage"]["completion_tokens"] == 0


def test_a_stream_has_every_log_probability_once(service):
    fields = {"prompt": ["Once upon", "a time"], "n": 2, "seed": 4, "temperature": 1, "logprobs": 2, "echo": True}
    whole = service.complete(**fields).json()["choices"]
    gathered = [{name: [] for name in LISTS} for _ in whole]
    for choice in service.stream(**fields):
        for name, values in (choice["logprobs"] or {}).items():
            gathered[choice["index"]][name] += values
    for ours, theirs in zip(gathered, whole, strict=True):
        assert ours["tokens"] == theirs["logprobs"]["tokens"]
        assert ours["text_offset"] == theirs["logprobs"]["text_offset"]
        assert ours["token_logprobs"][1:] == pytest.approx(theirs["logprobs"]["token_logprobs"][1:], abs=1e-4)


def test_settings_that_name_tokens_are_obeyed(service):
    allowed = service.complete(allowed_token_ids=[70], max_tokens=3, return_token_ids=True).json()
    assert allowed["choices"][0]["token_ids"] == [70] * 3
    biased = service.complete(logit_bias={"71": 100}, max_tokens=3, return_token_ids=True).json()
    assert biased["choices"][0]["token_ids"] == [71] * 3
    letter = biased["choices"][0]["text"][0]
    without = service.complete(logit_bias={"71": 100}, bad_words=[letter], max_tokens=3, return_token_ids=True).json()
    assert 71 not in without["choices"][0]["token_ids"]


def test_a_request_is_traced_from_the_router_through_its_engine(service):
    headers = {"X-Request-Id": "traced-by-name"}
    body = {"model": "tiny", "prompt": ["Once", "upon"], "n": 2, "max_tokens": 3, "temperature": 0}
    answer = service.http.post("/v1/completions", json=body, headers=headers).json()
    for prompt in (0, 1):
        for choice in (0, 1):
            events = events_of(service, "traced-by-name", prompt=prompt, choice=choice)
            assert sorted(events) == sorted(["dispatched", *ENGINE_EVENTS, "finished"])
    (trace,) = traces_of(service, answer["id"])
    assert trace["events"][0]["name"] == "received"
    times = [event["time_s"] for event in trace["events"]]
    assert times == sorted(times)


def test_a_request_that_was_given_its_name_is_found_by_it(service):
    answer = service.complete()
    (trace,) = traces_of(service, answer.headers["x-request-id"])
    assert trace["id"] == answer.json()["id"]
    assert events_of(service, answer.headers["x-request-id"], choice=0)[-1] == "finished"


def test_a_trace_ends_with_the_stop_string_and_the_engines_counts(service):
    text = service.text_of(max_tokens=40)
    answer = service.complete(max_tokens=40, stop=text[5:8]).json()
    events = events_of(service, answer["id"], choice=0)
    assert set(ENGINE_EVENTS) < set(events)
    (ended,) = [event for event in traces_of(service, answer["id"])[0]["events"] if event["name"] == "finished"]
    assert ended["details"]["reason"] == "stop"


def test_a_trace_of_an_unknown_request_is_not_found(service):
    response = service.http.get("/v1/requests/unknown/trace")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "trace_not_found"

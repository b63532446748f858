import json
import logging

import pytest

from rayinfer.errors import (
    EngineDead,
    HeadersTooLarge,
    InvalidParameter,
    NotReady,
    PromptTooLong,
    QueueFull,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    RequestTooLarge,
    RequestTooSlow,
    Unavailable,
    UnknownModel,
)
from rayinfer.servers.error_formats import (
    choose_error_format,
    error_format_of,
    kserve_error,
    openai_error,
    tgi_error,
)
from rayinfer.servers.error_responses import error_response, refusal_reason


@pytest.mark.parametrize(
    ("error", "status", "type_", "code"),
    [
        (InvalidParameter("no"), 400, "invalid_request_error", None),
        (RequestError("no", code="invalid_json"), 400, "invalid_request_error", "invalid_json"),
        (PromptTooLong("no"), 400, "invalid_request_error", "context_length_exceeded"),
        (UnknownModel("no"), 404, "invalid_request_error", "model_not_found"),
        (RequestTooLarge("no"), 413, "invalid_request_error", "request_too_large"),
        (RequestTooSlow("no"), 408, "invalid_request_error", "request_too_slow"),
        (HeadersTooLarge("no"), 431, "invalid_request_error", "headers_too_large"),
        (QueueFull("no"), 429, "rate_limit_error", "queue_full"),
        (NotReady("no"), 503, "service_unavailable_error", "not_ready"),
        (EngineDead("no"), 503, "service_unavailable_error", "engine_dead"),
        (Unavailable("no"), 503, "service_unavailable_error", "unavailable"),
        (RequestTimedOut("no"), 504, "timeout_error", "timeout"),
        (RequestFailed("no"), 500, "server_error", "generation_failed"),
        (KeyError("no"), 500, "server_error", "internal_error"),
    ],
)
def test_every_error_has_its_status_and_openais_envelope(error, status, type_, code):
    response = error_response(error)
    reported = json.loads(response.body)["error"]
    assert response.status_code == status
    assert set(reported) == {"message", "type", "param", "code"}
    assert (reported["type"], reported["code"]) == (type_, code)


def test_messages_of_internal_failures_are_not_sent():
    for error in (RequestFailed("/srv/model.py line 3"), RuntimeError("secret"), OSError(2, "No file", "/srv/x")):
        body = bytes(error_response(error).body).decode()
        assert "srv" not in body
        assert "secret" not in body


def test_retry_after_is_in_whole_seconds_and_never_zero():
    assert error_response(QueueFull("full", retry_after_s=2.2)).headers["retry-after"] == "3"
    assert error_response(QueueFull("full", retry_after_s=0.0)).headers["retry-after"] == "1"
    assert "retry-after" not in error_response(InvalidParameter("no")).headers


def test_a_long_message_and_a_long_param_are_cut():
    reported = json.loads(error_response(InvalidParameter("x" * 10**6, "y" * 10**6)).body)["error"]
    assert len(reported["message"]) == 1000
    assert len(reported["param"]) == 1000


def test_half_a_surrogate_pair_in_a_message_does_not_stop_the_answer():
    assert json.loads(error_response(InvalidParameter("got \ud83d")).body)["error"]["message"] == "got ?"


def test_the_reasons_of_refusals_are_a_short_list():
    assert refusal_reason(InvalidParameter("x", code="anything a caller says")) == "invalid_request"
    assert refusal_reason(QueueFull("x")) == "queue_full"


async def test_an_unforeseen_failure_is_a_neutral_500_that_is_logged_once(client, generator, caplog):
    generator.refusal = ZeroDivisionError("in /srv/engine.py")
    with caplog.at_level(logging.ERROR):
        response = await client.post("/v1/completions", json={"prompt": "hi"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "srv" not in response.text
    assert [record.exc_info[0] for record in caplog.records if record.exc_info] == [ZeroDivisionError]


async def test_a_request_that_the_engine_failed_is_a_neutral_500(client, generator):
    generator.refusal = RequestFailed("tensor 7 on cpu")
    response = await client.post("/v1/completions", json={"prompt": "hi"})
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"
    assert "tensor" not in response.text


@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        (
            "/v1/completions",
            400,
            {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": None}},
        ),
        ("/v2/models/m/infer", 400, {"error": "no"}),
        ("/v2", 400, {"error": "no"}),
        ("/v1/models/org/m:predict", 400, {"error": "no"}),
        ("/generate", 422, {"error": "Input validation error: no", "error_type": "validation"}),
        ("/models/org/m/generate", 422, {"error": "Input validation error: no", "error_type": "validation"}),
        ("/", 422, {"error": "Input validation error: no", "error_type": "validation"}),
        ("/api", 400, {"message": "no"}),
        ("/v2x", 400, {"error": {"message": "no", "type": "invalid_request_error", "param": "n", "code": None}}),
    ],
)
def test_an_error_has_the_form_of_its_paths_protocol(path, status, body):
    response = error_response(InvalidParameter("no", "n"), error_format_of({"path": path}))
    assert (response.status_code, json.loads(response.body)) == (status, body)


def test_an_endpoint_may_choose_the_form_of_its_errors():
    scope = {"path": "/v1/completions", "state": {}}
    choose_error_format(scope, tgi_error)
    response = error_response(InvalidParameter("no", "n"), error_format_of(scope))
    assert (response.status_code, json.loads(response.body)) == (
        422,
        {"error": "Input validation error: no", "error_type": "validation"},
    )


def test_the_form_of_an_error_does_not_depend_on_the_applications_prefix():
    assert error_format_of({"path": "/service/generate", "root_path": "/service"}) is tgi_error
    assert error_format_of({"path": "/v2/infer", "root_path": "/v"}) is kserve_error
    assert error_format_of({"path": "/servicev2", "root_path": "/service"}) is openai_error

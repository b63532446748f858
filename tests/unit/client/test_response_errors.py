import pytest

from rayinfer.client.response_errors import error_of_response, rebuilt_error
from rayinfer.error_kinds import ERROR_KINDS
from rayinfer.errors import (
    AuthenticationFailed,
    InvalidParameter,
    RequestError,
    RequestFailed,
    RequestTimedOut,
    Unavailable,
)
from rayinfer.servers.error_responses import error_response

# What a client cannot know by their classes.
SEEN_AS = {BaseException: RequestFailed}


@pytest.mark.parametrize("error_class", ERROR_KINDS)
def test_every_error_of_a_service_has_its_class_in_the_client(error_class):
    arguments = ("no", 2.0) if issubclass(error_class, Unavailable) else ("no",)
    response = error_response(error_class(*arguments))
    error = error_of_response(response.status_code, bytes(response.body), response.headers.get("retry-after"))
    assert type(error) is SEEN_AS.get(error_class, error_class)
    assert str(error) == "no" or not ERROR_KINDS[error_class].is_public
    assert getattr(error, "retry_after_s", 2.0) == 2.0


def test_a_missing_key_is_a_failed_authentication():
    response = error_response(AuthenticationFailed("no key", None, "missing_api_key"))
    assert type(error_of_response(response.status_code, bytes(response.body))) is AuthenticationFailed


def test_the_field_at_fault_is_known():
    response = error_response(InvalidParameter("no", "top_k", "bad"))
    error = error_of_response(response.status_code, bytes(response.body))
    assert (type(error), error.param, error.code) == (InvalidParameter, "top_k", "bad")


@pytest.mark.parametrize(
    ("status", "body", "error_class"),
    [
        (500, b"<html>", RequestFailed),
        (502, b"", RequestFailed),
        (503, b"[]", Unavailable),
        (504, b'{"error": "late"}', RequestTimedOut),
        (400, b'{"error": {"message": 5, "param": 7, "code": 400}}', RequestError),
        (418, b"\xff", RequestError),
    ],
)
def test_bodies_of_others_are_errors_by_their_status(status, body, error_class):
    assert type(error_of_response(status, body, "Wed, 21 Oct 2026 07:28:00 GMT")) is error_class


def test_a_long_message_is_cut():
    assert len(str(rebuilt_error({"message": "x" * 10**6}))) == 1000

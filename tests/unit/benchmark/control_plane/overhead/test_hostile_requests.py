import pytest
from starlette.datastructures import Headers

from rayinfer.benchmark.control_plane.overhead import hostile_requests
from rayinfer.servers import json_decoding, request_bounds
from rayinfer.servers.access.web_origins import OriginPolicy
from rayinfer.servers.openai import schemas

KINDS = hostile_requests.hostile_kinds()


@pytest.fixture(scope="module")
def corpus():
    return hostile_requests.hostile_requests("m", KINDS)


def test_the_corpus_goes_to_the_limits_that_a_service_has():
    assert hostile_requests.MAX_VALUES == json_decoding.MAX_VALUES
    assert hostile_requests.MAX_PIECES == json_decoding.MAX_PIECES
    assert hostile_requests.MAX_MESSAGES == schemas.MAX_LIST_ITEMS
    assert hostile_requests.MAX_BODY_BYTES == request_bounds.DEFAULT_MAX_BODY_BYTES
    assert request_bounds.RequestBounds().max_headers == hostile_requests.MAX_HEADERS


def test_no_request_is_turned_away_for_the_name_of_its_host(corpus):
    for request in (request for requests in corpus.values() for request in requests):
        head = request.content.partition(b"\r\n\r\n")[0].decode(errors="replace")
        if not head.partition("\r\n")[0].endswith(" HTTP/1.1"):
            continue  # not even HTTP
        method, path = head.split(" ", 2)[:2]
        fields = [line.partition(": ") for line in head.split("\r\n")[1:]]
        headers = Headers({name.lower(): value for name, _, value in fields[:10]})
        assert OriginPolicy(is_local=True).refusal(method, path, headers, "127.0.0.1") is None


def test_hostile_grammars_are_all_different(corpus):
    assert len({request.content for request in corpus["grammars"]}) == hostile_requests.NUM_GRAMMARS


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"over the limits"}))
def test_a_body_is_as_long_as_its_head_says_and_not_too_long(corpus, kind):
    for request in corpus[kind]:
        head, _, body = request.content.partition(b"\r\n\r\n")
        if request.is_complete and head.startswith(b"POST"):
            assert b"Content-Length: %d\r\n" % len(body) in head + b"\r\n"
            assert len(body) <= hostile_requests.MAX_BODY_BYTES


@pytest.mark.parametrize("kind", ["numbers", "long numbers", "strings", "messages", "escapes", "logit biases"])
def test_largest_bodies_are_decoded_and_not_refused_for_their_size(corpus, kind):
    for request in corpus[kind][:2]:
        assert json_decoding.decode_json(request.content.partition(b"\r\n\r\n")[2])["model"] == "m"

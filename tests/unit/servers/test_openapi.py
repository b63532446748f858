"""The OpenAPI document: every route, with its body, responses and errors, in ranges that hold."""

import inspect
import re
from dataclasses import replace

import pytest
from starlette.routing import Route

from rayinfer.servers.app import build_app
from rayinfer.servers.openai.request_schemas import pattern_below
from rayinfer.servers.request_limits import RequestLimits
from support.fakes.fake_generator import FakeGenerator
from support.fakes.fake_predictor import IMAGES

WITH_BODY = (
    *("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"),
    *("/generate", "/generate_stream", "/chat_tokenize", "/invocations", "/api"),
    *("/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/api/generate", "/api/show"),
    *("/v1/embeddings", "/score", "/v1/rerank", "/rerank", "/classify", "/pooling"),
    *("/embed", "/embed_all", "/predict", "/similarity", "/decode", "/v1/images/classify"),
)


UNDOCUMENTED = {"read_document", "read_file", "docs", "refuse_change"}  # pages, and what Ollama could and we cannot


@pytest.fixture
def document(models, metrics):
    return build_app(models, metrics, enable_engine_control=True, request_limits=RequestLimits(max_n=5)).openapi()


def test_every_route_is_documented_once_beside_its_aliases(models, metrics, document):
    app = build_app(models, metrics, enable_engine_control=True)
    routes = [route for route in app.routes if isinstance(route, Route) and route.name not in UNDOCUMENTED]
    hidden = {inspect.unwrap(route.endpoint) for route in routes if not route.include_in_schema}
    shown = [route for route in routes if route.include_in_schema]
    assert hidden <= {inspect.unwrap(route.endpoint) for route in shown}
    assert {re.sub(r":\w+}", "}", route.path) for route in shown} == document["paths"].keys()


def test_every_operation_says_what_it_returns_and_how_it_fails(document):
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            responses = operation["responses"]
            assert {"431", "500"} <= responses.keys(), path
            assert "HTTPValidationError" not in str(responses), path
            assert "200" in responses or "404" in responses, path
            errors = {status: each for status, each in responses.items() if status >= "400"}
            assert all(each["description"] and each["content"]["application/json"] for each in errors.values()), path
            has_body = path in WITH_BODY or (
                method == "post"
                and path.startswith(
                    ("/v2/embed", "/v2/models", "/v2/repo", "/v2/trace", "/v2/log", "/v1/models", "/v2/sys", "/v2/cuda")
                )
            )
            assert ("requestBody" in operation) == (has_body or (method, path) == ("post", "/")), path


def test_every_reference_has_its_schema(document):
    names = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert names <= document["components"]["schemas"].keys()
    assert {"ChatCompletionBody", "CompletionBody", "ErrorResponse", "TokenizePromptBody"} <= names


class ImageClassifier(FakeGenerator):
    """Predictor that reads no tokens."""

    def describe(self):
        return replace(super().describe(), predictor=IMAGES, vocab_size=0)


def test_a_model_without_a_vocabulary_changes_no_range(models, metrics, document):
    models["images"] = replace(models["org/tiny"], name="images", generator=ImageClassifier())
    mixed = build_app(models, metrics, enable_engine_control=True, request_limits=RequestLimits(max_n=5)).openapi()
    assert mixed["components"] == document["components"]
    del models["org/tiny"]
    assert build_app(models, metrics).openapi()["paths"]


def test_ranges_are_those_of_the_settings_and_of_the_models(document, models, generator):
    fields = document["components"]["schemas"]["CompletionBody"]["properties"]
    assert fields["n"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 5}
    assert fields["stop_token_ids"]["anyOf"][0]["items"]["maximum"] == 383
    assert fields["truncate_prompt_tokens"]["anyOf"][1]["maximum"] == 255


def test_a_template_may_be_sent_where_requests_are_trusted(models, metrics, document):
    trusting = build_app(models, metrics, trusts_request_chat_template=True).openapi()
    fields = [each["components"]["schemas"]["ChatCompletionBody"]["properties"] for each in (document, trusting)]
    assert fields[0]["chat_template"]["type"] == "null"
    assert {"type": "string"} in fields[1]["chat_template"]["anyOf"]


def test_a_service_without_models_has_a_document_too(metrics):
    schemas = build_app({}, metrics).openapi()["components"]["schemas"]
    assert "CompletionBody" in schemas


async def test_the_document_is_served_and_no_page_loads_programs_from_elsewhere(client):
    assert (await client.get("/openapi.json")).json()["openapi"].startswith("3.1")
    for path in ("/redoc", "/docs/oauth2-redirect"):
        assert (await client.get(path)).status_code == 404
    for path in ("/", "/docs"):
        assert "://" not in (await client.get(path, headers={"accept": "text/html"})).text


@pytest.mark.parametrize("limit", [1, 2, 10, 11, 100, 384, 1001, 32_000])
def test_the_pattern_of_token_ids_ends_with_the_vocabulary(limit):
    pattern = re.compile(pattern_below(limit))
    assert [number for number in range(limit + 2000) if pattern.fullmatch(str(number))] == list(range(limit))
    assert not any(pattern.fullmatch(text) for text in ("", "-1", "00", "05", "1.0", str(limit) + "0"))

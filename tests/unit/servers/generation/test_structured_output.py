import json

import pytest

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.grammars.spec import StructuredOutputsParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
BAD = {"type": "array", "uniqueItems": True}
MESSAGES = [{"role": "user", "content": "a"}]
NAMED = {"name": "answer", "strict": True}


@pytest.fixture
def generator(generator):
    generator.supports_structured_outputs = True
    return generator


async def post(client, form, *, path="/v1/chat/completions"):
    body = {"messages": MESSAGES} if path.endswith("chat/completions") else {"prompt": "a"}
    if path == "/generate":
        body = {"inputs": "a"}
    return await client.post(path, json={**body, **form})


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        ({"response_format": {"type": "json_schema", "json_schema": {**NAMED, "schema": SCHEMA}}}, {"json": SCHEMA}),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": json.dumps(SCHEMA)}),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
        ({"structured_outputs": {"grammar": 'root ::= "a"'}}, {"grammar": 'root ::= "a"'}),
    ],
)
async def test_forms_of_openai_and_vllm_reach_the_engine(client, generator, path, form, expected):
    answer = await post(client, form, path=path)
    assert answer.status_code == 200, answer.text
    sent = generator.requests[-1].sampling_params.structured_outputs
    assert sent == (None if expected is None else StructuredOutputsParams(**expected))


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ({"type": "json", "value": SCHEMA}, {"json": SCHEMA}),
        ({"type": "json_schema", "value": {"name": "a", "schema": SCHEMA}}, {"json": SCHEMA}),
        ({"type": "regex", "value": "a+"}, {"regex": "a+"}),
    ],
)
async def test_grammars_of_tgi_reach_the_engine(client, generator, grammar, expected):
    answer = await post(client, {"parameters": {"grammar": grammar}}, path="/generate")
    assert answer.status_code == 200, answer.text
    assert generator.requests[-1].sampling_params.structured_outputs == StructuredOutputsParams(**expected)


@pytest.mark.parametrize(
    ("form", "param", "message"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}}, "response_format", "object"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": BAD}}},
            "response_format",
            "uniqueItems",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"json": SCHEMA, "lenient": True}}, "structured_outputs", "lenient"),
        ({"structured_outputs": {"regex": "("}}, "structured_outputs", "regex"),
        ({"structured_outputs": {"regex": "a" * 70_000}}, "structured_outputs", "at most 65536 characters"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "beside response_format",
        ),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 3}, "min_tokens", "beside structured_outputs"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos", "beside structured_outputs"),
        ({"guided_regex": "a"}, "guided_regex", "structured_outputs.regex"),
    ],
)
async def test_wrong_forms_are_refused_by_the_clients_field(client, generator, form, param, message):
    answer = await post(client, form)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert message in error["message"]
    assert not generator.requests


@pytest.mark.parametrize("grammar", [{"type": "json", "value": BAD}, {"type": "lark", "value": "a"}, {"type": "regex"}])
async def test_wrong_grammars_of_tgi_are_refused(client, generator, grammar):
    answer = await post(client, {"parameters": {"grammar": grammar}}, path="/generate")
    assert answer.status_code == 422
    assert "grammar" in answer.json()["error"]
    assert not generator.requests


TALK = {"model": "org/tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}
JSON_FORMAT = {"type": "json_schema", "json_schema": {**NAMED, "schema": SCHEMA}}
FORMED = {  # path: body with a form, and the client's name for it
    "/v1/completions": ({"prompt": "a", "response_format": JSON_FORMAT}, "response_format"),
    "/v1/chat/completions": (TALK | {"structured_outputs": {"json": SCHEMA}, "n": 3}, "structured_outputs"),
    "/v1/responses": (
        {"input": "a", "text": {"format": {"type": "json_schema", **NAMED, "schema": SCHEMA}}},
        "text.format",
    ),
    "/v1/messages": (
        TALK | {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
        "output_config.format",
    ),
    "/api/chat": (TALK | {"format": SCHEMA}, "format"),
    "/api/generate": ({"model": "org/tiny", "prompt": "a", "raw": True, "format": SCHEMA}, "format"),
    "/generate": ({"inputs": "a", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}, "grammar"),
    "/generate_stream": ({"inputs": "a", "parameters": {"grammar": {"type": "json", "value": SCHEMA}}}, "grammar"),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", FORMED)
async def test_what_an_engine_refuses_is_refused_before_a_stream_begins(client, generator, path, stream):
    problem = "too much (limit max_lexer_states: 20000)"
    generator.grammar_refusal = InvalidParameter(f"structured_outputs.json: {problem}", "structured_outputs")
    body, field = FORMED[path]
    response = await client.post(path, json=body | {"stream": stream})
    assert response.status_code == (422 if path.startswith("/generate") else 400), response.text
    name = "structured_outputs.json" if field == "structured_outputs" else field
    assert f"{name}: {problem}" in response.text
    assert len(generator.grammars) == 1  # once for all choices
    assert not generator.requests


async def test_a_response_in_the_background_is_refused_at_once(client, generator):
    generator.grammar_refusal = InvalidParameter("structured_outputs.json: too much", "structured_outputs")
    response = await client.post("/v1/responses", json=FORMED["/v1/responses"][0] | {"background": True})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "text.format")


async def test_a_grammar_that_an_engine_fails_to_compile_is_an_internal_error(client, generator):
    generator.grammar_refusal = RequestFailed("inner details")
    response = await client.post("/v1/completions", json=FORMED["/v1/completions"][0])
    assert response.status_code == 500
    assert "inner details" not in response.text
    assert not generator.requests


async def test_models_without_grammars_say_so(client, generator):
    generator.supports_structured_outputs = False
    answer = await post(client, {"structured_outputs": {"regex": "a"}})
    assert answer.status_code == 400
    assert "not supported by this model" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "org/tiny", "prompt": "hello"}),
        ("/v1/chat/completions", TALK),
        ("/v1/responses", {"model": "org/tiny", "input": "hello"}),
        ("/v1/messages", TALK),
        ("/api/chat", TALK | {"stream": False}),
        ("/generate", {"inputs": "hello"}),
    ],
)
async def test_a_limit_met_within_an_answer_is_an_error_of_its_request(client, generator, path, body):
    generator.finish_reason, generator.error = "error", "the grammar meets a limit (limit step_max_items: 20000)"
    response = await client.post(path, json=body)
    assert response.status_code == 422
    assert "step_max_items" in response.text


async def test_a_limit_met_within_a_stream_is_an_event(client, generator):
    generator.finish_reason, generator.error = "error", "the grammar meets a limit (limit step_max_items: 20000)"
    response = await client.post("/v1/chat/completions", json=TALK | {"stream": True})
    assert response.status_code == 200
    assert '"code": "generation_refused"' in response.text
    assert "step_max_items" in response.text

import json

import pytest

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


async def test_models_without_grammars_say_so(client, generator):
    generator.supports_structured_outputs = False
    answer = await post(client, {"structured_outputs": {"regex": "a"}})
    assert answer.status_code == 400
    assert "not supported by this model" in answer.json()["error"]["message"]


TALK = {"model": "org/tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 20}


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

import pytest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
BROKEN = {"type": "object", "properties": {"a": {"type": "nonsense"}}}
MESSAGES = [{"role": "user", "content": "hello"}]
APIS = {
    "/api/chat": lambda schema: {"messages": MESSAGES, "format": schema},
    "/api/generate": lambda schema: {"prompt": "hello", "format": schema},
    "/v1/messages": lambda schema: {
        "messages": MESSAGES, "max_tokens": 9, "output_config": {"format": {"type": "json_schema", "schema": schema}}
    },
    "/v1/responses": lambda schema: {
        "input": "hello", "text": {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    },
}  # fmt: skip
FIELDS = {"/v1/messages": "output_config.format", "/v1/responses": "text.format"}


@pytest.mark.parametrize("path", APIS)
async def test_schemas_of_every_protocol_reach_the_engine(client, generator, path):
    generator.supports_structured_outputs = True
    body = {"model": "org/tiny", "stream": False, **APIS[path](SCHEMA)}
    assert (await client.post(path, json=body)).status_code == 200
    assert generator.requests[0].sampling_params.structured_outputs.kind == "json"


@pytest.mark.parametrize("path", APIS)
async def test_broken_schemas_are_refused_in_the_field_of_the_protocol(client, generator, path):
    generator.supports_structured_outputs = True
    response = await client.post(path, json={"model": "org/tiny", **APIS[path](BROKEN)})
    assert response.status_code == 400
    assert FIELDS.get(path, "format") in response.text
    generator.supports_structured_outputs = False
    response = await client.post(path, json={"model": "org/tiny", **APIS[path](SCHEMA)})
    assert (response.status_code, "not supported by this model" in response.text) == (400, True)

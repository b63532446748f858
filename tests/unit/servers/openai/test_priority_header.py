import pytest

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
BODIES = {TEXT: {"prompt": "hi"}, CHAT: {"messages": [{"role": "user", "content": "hi"}]}}
BAD = ["", "high", "1.0", "11", "-11", "1 2", "0x1", "1e1", "9" * 5000, "\u00b2", "--1", "1_0"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_the_header_counts_before_the_body(client, generator, path, stream):
    for header, priority in (("-3", -3), ("0", 0), ("+10", 10)):
        body = BODIES[path] | {"priority": 5, "stream": stream}
        assert (await client.post(path, json=body, headers={"X-Vllm-Priority": header})).status_code == 200
        assert generator.requests[-1].priority == priority
    await client.post(path, json=BODIES[path] | {"priority": 5})
    assert generator.requests[-1].priority == 5


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("value", BAD, ids=lambda value: value[:8])
async def test_a_header_that_is_no_priority_is_refused_by_name(client, generator, path, value):
    answer = await client.post(path, json=BODIES[path], headers={"X-Vllm-Priority": value.encode("latin-1")})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, "X-Vllm-Priority")
    assert "must be an integer from -10 to 10" in error["message"]
    assert len(error["message"]) < 200
    assert not generator.requests
    assert (await client.post(path, json=BODIES[path])).status_code == 200


async def test_two_priorities_are_refused(client):
    headers = [("X-Vllm-Priority", "1"), ("X-Vllm-Priority", "1")]
    assert (await client.post(TEXT, json=BODIES[TEXT], headers=headers)).status_code == 400


async def test_the_document_names_the_header(client):
    paths = (await client.get("/openapi.json")).json()["paths"]
    for path in BODIES:
        (parameter,) = paths[path]["post"]["parameters"]
        assert (parameter["name"], parameter["in"]) == ("X-Vllm-Priority", "header")

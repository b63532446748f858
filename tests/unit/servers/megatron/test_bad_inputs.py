"""Bad inputs of Megatron's path: each has its status, and a good request works after it."""

import json

import pytest

PROMPTS = {"prompts": ["hello"]}
HUGE = 10**400
HUGER = 10**3900

FIELDS = {
    "prompts": [[], None, "hello", 1, {}, [1], [None], [["a"]], ["a"] * 129, [""], ["a", ""], ["a " * 400]],
    "tokens_to_generate": [-1, 0, 253, 2**31, HUGE, "1", 1.5, True],
    "logprobs": [1, "true", []],
    "temperature": [0, -1, 101, 2.5, "1", True, HUGE],
    "top_k": [-1, 1001, 1.5, "1", True, HUGE, HUGER],
    "top_p": [-0.5, 1.5, "1", True],
    "top_p_decay": [0.5, True, "x"],
    "top_p_bound": [0.5, True, "x"],
    "length_penalty": [0.5, 2, True, "x"],
    "beam_width": [1, 4, "x"],
    "add_BOS": [1, "true"],
    "stop_on_eol": [1, "true"],
    "stop_on_double_eol": [1, "true"],
    "prevent_newline_after_colon": [1, "true"],
    "random_seed": [-1, 2**64, HUGE, 1.5, "1", True],
    "stop_token": [-1, 384, HUGE, 1.5, "1"],
    "no_log": [1, "true"],
    "max_len": [10, None],
    "sentences": [["a"]],
}
BODIES = [b"", b"{", b"[]", b"null", b'{"prompts": NaN}', b'{"prompts": ["\xff"]}', b"{}"]


def test_the_table_is_long():
    assert sum(map(len, FIELDS.values())) + len(BODIES) >= 70


async def check_refused(client, generator, content, status=400):
    response = await client.put("/api", content=content, headers={"content-type": "application/json"})
    assert response.status_code == status, content[:200]
    assert set(response.json()) == {"message"}
    assert len(response.content) < 1500
    assert generator.requests == []
    assert (await client.put("/api", json=PROMPTS)).status_code == 200
    generator.requests.clear()
    return response.json()["message"]


async def test_each_field_is_refused_by_its_name(client, generator):
    for field, values in FIELDS.items():
        for value in values:
            content = json.dumps(PROMPTS | {field: value}).encode()
            message = await check_refused(client, generator, content)
            assert field in message or "maximum context length" in message, value
    both = json.dumps(PROMPTS | {"top_k": 2, "top_p": 0.5}).encode()
    assert "cannot both" in await check_refused(client, generator, both)


async def test_bodies_that_are_wrong_are_refused(client, generator):
    for content in BODIES:
        await check_refused(client, generator, content)
    await check_refused(client, generator, b'{"prompts": ["' + b"a" * 200_000 + b'"]}', 413)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("POST", "/api", 405), ("GET", "/api", 405), ("PUT", "/models/gone/api", 404)],
)
async def test_wrong_methods_and_models_are_refused(client, method, path, status):
    response = await client.request(method, path, json=PROMPTS)
    assert response.status_code == status
    assert set(response.json()) == {"message"}

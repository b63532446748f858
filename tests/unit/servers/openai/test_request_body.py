import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openai.schemas import CompletionBody

JSON = {"content-type": "application/json"}


async def post(client, content: bytes, headers: dict[str, str] | None = None):
    return await client.post("/v1/completions", content=content, headers=JSON if headers is None else headers)


@pytest.mark.parametrize(
    ("fields", "reported"),
    [
        ({"n": 1.5}, "n: Input should be a valid integer, got 1.5"),
        ({"n": True}, "n: Input should be a valid integer, got true"),
        ({"temperature": "my-secret"}, "temperature: Input should be a valid number, got a string"),
        ({"stop_token_ids": [None]}, "stop_token_ids.0: Input should be a valid integer, got null"),
        ({"logit_bias": [1]}, "logit_bias: Input should be an object, got a list"),
        ({"stream_options": "x"}, "stream_options: Input should be an object, got a string"),
        ({"prompt": None, "echo": {}}, "echo: Input should be a valid boolean, got an object"),
    ],
)
async def test_the_error_of_a_wrong_type_names_the_right_one(client, fields, reported):
    response = await client.post("/v1/completions", json={"prompt": "a"} | fields)
    assert response.json()["error"]["message"] == reported


@pytest.mark.parametrize("stop", [{}, {"a": 1}])
async def test_the_members_of_a_union_are_not_named(client, stop):
    error = (await client.post("/v1/completions", json={"prompt": "a", "stop": stop})).json()["error"]
    assert (error["param"], "str]" in error["message"]) == ("stop", False)


@pytest.mark.parametrize("depth", [300, 600, 900, 960])
async def test_errors_of_nested_fields_are_in_json_terms(client, depth):
    nested = b"[" * depth + b"]" * depth
    message = b'{"role": "user", "content": "a", "more": ' + nested + b"}"
    for content in (b'{"prompt": ' + nested + b"}", b'{"messages": [' + message + b"]}"):
        for path in ("/v1/completions", "/v1/chat/completions"):
            response = await client.post(path, content=content, headers=JSON)
            assert response.status_code in (200, 400)
            assert "recursion" not in response.text.lower()


async def test_an_infinite_number_spelled_with_digits_is_400(client):
    response = await post(client, b'{"prompt": "a", "temperature": 1e999}')
    assert (response.status_code, response.json()["error"]["param"]) == (400, "temperature")


async def test_thousands_of_wrong_values_give_a_short_answer(client):
    for body in (
        {"prompt": "a", "stop": [1] * 5000},
        {"prompt": "a", "stop_token_ids": ["x"] * 3000},
        {"prompt": "a", **dict.fromkeys(("n", "seed", "top_k", "top_p", "min_p", "max_tokens", "priority"), "x")},
    ):
        response = await client.post("/v1/completions", json=body)
        assert response.status_code == 400
        assert len(response.content) < 1500


def test_a_long_list_of_wrong_values_makes_one_finding():
    with pytest.raises(InvalidParameter) as refusal:
        check_schema(CompletionBody, {"prompt": "a", "stop_token_ids": ["x"] * 3000})
    assert refusal.value.message.count("valid integer") == 1


async def test_what_the_client_sent_is_not_repeated(client):
    response = await client.post("/v1/completions", json={"prompt": "a", "temperature": "my-secret"})
    assert "my-secret" not in response.text

import pytest

from rayinfer.sampling_params import SamplingParams

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
BODIES = {CHAT: {"messages": [{"role": "user", "content": "hello"}]}, TEXT: {"prompt": "hello"}}
DEFAULTS = {"temperature": 0.2, "top_p": 0.9, "top_k": 11, "min_p": 0.05, "repetition_penalty": 1.1}


@pytest.fixture
def params_of(client, generator):
    async def send(path, **fields):
        response = await client.post(path, json=BODIES[path] | fields)
        assert response.status_code == 200, response.text
        params = generator.requests[-1].sampling_params
        return {name: getattr(params, name) for name in (*DEFAULTS, "max_tokens")}

    return send


@pytest.mark.parametrize("path", BODIES)
async def test_a_request_that_names_none_gets_the_models(params_of, generator, path):
    generator.default_sampling_params = DEFAULTS
    for fields in ({}, dict.fromkeys(DEFAULTS)):  # null counts as not given
        assert await params_of(path, **fields) == DEFAULTS | {"max_tokens": 16 if path == TEXT else None}


@pytest.mark.parametrize("path", BODIES)
async def test_what_a_request_names_wins_even_where_it_is_the_protocols_default(params_of, generator, path):
    generator.default_sampling_params = DEFAULTS
    protocol = {name: getattr(SamplingParams(), name) for name in DEFAULTS}
    assert await params_of(path, **protocol) == protocol | {"max_tokens": 16 if path == TEXT else None}
    assert await params_of(path, temperature=0) == DEFAULTS | {
        "temperature": 0,
        "max_tokens": 16 if path == TEXT else None,
    }


@pytest.mark.parametrize("path", BODIES)
async def test_a_model_without_defaults_leaves_the_protocols(params_of, path):
    params = await params_of(path)
    assert (params["temperature"], params["top_p"], params["top_k"]) == (1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("path", "limit", "fields", "expected"),
    [
        (CHAT, 40, {}, 40),
        (CHAT, 40, {"max_tokens": None}, 40),
        (CHAT, 40, {"max_tokens": 7}, 7),
        (CHAT, 40, {"max_completion_tokens": 70}, 40),
        (TEXT, 40, {}, 16),
        (TEXT, 9, {}, 9),
        (TEXT, 40, {"max_tokens": 70}, 40),
        (TEXT, 40, {"max_tokens": 0, "echo": True}, 0),
    ],
)
async def test_max_new_tokens_is_default_and_limit_of_answers(params_of, generator, path, limit, fields, expected):
    generator.default_sampling_params = {"max_tokens": limit}
    assert (await params_of(path, **fields))["max_tokens"] == expected


async def test_the_list_of_models_shows_the_defaults(client, generator):
    generator.default_sampling_params = {"temperature": 0.2, "max_tokens": 300}
    for path in ("/v1/models", "/v1/models/org/tiny"):
        card = (await client.get(path)).json()
        card = card["data"][0] if "data" in card else card
        assert card["default_sampling_params"] == {"temperature": 0.2, "max_tokens": 300}
    generator.not_ready = "an engine is gone"
    assert (await client.get("/v1/models/org/tiny")).json()["default_sampling_params"] is None

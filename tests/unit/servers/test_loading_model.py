from dataclasses import replace

import pytest

from support.fakes.fake_generator import FakeGenerator

MESSAGES = [{"role": "user", "content": "hi"}]
TENSOR = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
REQUESTS = [
    ("POST", "/v1/completions", {"model": "{}", "prompt": "hi"}),
    ("POST", "/v1/completions", {"model": "{}", "prompt": "hi", "stream": True}),
    ("POST", "/v1/chat/completions", {"model": "{}", "messages": MESSAGES}),
    ("POST", "/v2/models/{}/infer", {"inputs": [TENSOR]}),
    ("POST", "/v2/models/{}/generate", {"text_input": "hi"}),
    ("POST", "/v2/models/{}/generate_stream", {"text_input": "hi"}),
    ("POST", "/v1/models/{}:predict", {"instances": ["hi"]}),
    ("POST", "/models/{}/generate", {"inputs": "hi"}),
    ("POST", "/models/{}/generate_stream", {"inputs": "hi"}),
    ("PUT", "/models/{}/api", {"prompts": ["hi"], "tokens_to_generate": 1}),
]


@pytest.mark.parametrize(("method", "path", "body"), REQUESTS)
async def test_a_model_that_is_loading_is_unavailable_for_itself_only(client, models, method, path, body):
    for name, reason in (("first", ""), ("second", ""), ("third", "it is loading")):
        models[name] = replace(models["org/tiny"], name=name, generator=FakeGenerator(not_ready=reason))
    del models["org/tiny"]
    for name in ("first", "second", "third"):
        named = body | ({"model": name} if "model" in body else {})
        response = await client.request(method, path.format(name), json=named)
        assert response.status_code == (503 if name == "third" else 200), response.text
        assert ("retry-after" in response.headers) == (name == "third")

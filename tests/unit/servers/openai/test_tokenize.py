"""vLLM's paths of tokenizers, model cards, and paths that are reserved."""

import pytest

from rayinfer.servers.app import build_app
from rayinfer.servers.request_limits import RequestLimits

HELLO = [{"role": "user", "content": "hello"}]


async def answer(client, path, **fields):
    response = await client.post(path, json=fields)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", ["/tokenize", "/tokenize/", "/v1/tokenize"])
async def test_a_text_is_tokenized_as_in_a_completion(client, models, path):
    tokenizer = models["org/tiny"].tokenizer
    body = await answer(client, path, prompt="one two <|im_end|>", return_token_strs=True)
    assert body["tokens"] == tokenizer.encode("one two <|im_end|>")
    assert body["token_strs"] == [tokenizer.token_piece(each) for each in body["tokens"]]
    assert body["token_strs"][-1] == "<|im_end|>"
    assert (body["count"], body["max_model_len"]) == (len(body["tokens"]), 256)


async def test_a_conversation_is_tokenized_as_in_a_chat(client, generator):
    await answer(client, "/v1/chat/completions", messages=HELLO)
    body = await answer(client, "/tokenize", messages=HELLO)
    assert body["tokens"] == generator.requests[0].prompt_token_ids
    assert body["token_strs"] is None
    shorter = await answer(client, "/tokenize", messages=HELLO, add_generation_prompt=False)
    assert shorter["tokens"] == body["tokens"][: shorter["count"]]
    assert shorter["count"] < body["count"]


async def test_an_empty_text_and_one_beyond_the_context_are_tokenized(client):
    assert (await answer(client, "/tokenize", prompt="", add_special_tokens=False, return_token_strs=True)) == {
        "count": 0,
        "max_model_len": 256,
        "tokens": [],
        "token_strs": [],
    }
    long = await answer(client, "/tokenize", prompt="a b " * 20_000)
    assert long["count"] == len(long["tokens"]) > 20_000
    cut = await answer(client, "/tokenize", prompt="a b " * 20_000, truncate_prompt_tokens=7)
    assert cut["tokens"] == long["tokens"][-7:]


async def test_token_ids_are_turned_into_the_text_they_came_from(client):
    text = "one <|im_end|> 東京 🏴 two"
    tokens = (await answer(client, "/tokenize", prompt=text))["tokens"]
    for path in ("/detokenize", "/detokenize/", "/v1/detokenize"):
        assert await answer(client, path, tokens=tokens) == {"prompt": text}
    assert await answer(client, "/detokenize", tokens=[]) == {"prompt": ""}


async def test_as_many_tokens_as_the_setting_allows_are_returned(models, metrics, client):
    from httpx import ASGITransport, AsyncClient

    app = build_app(models, metrics, request_limits=RequestLimits(max_repeated_token_ids=100))
    async with AsyncClient(transport=ASGITransport(app), base_url="http://service") as limited:
        for path, body in (("/tokenize", {"prompt": "a b " * 9000}), ("/detokenize", {"tokens": [3] * 101})):
            assert (await client.post(path, json=body)).status_code == 200
            refused = await limited.post(path, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, next(iter(body)))
            assert "100" in refused.json()["error"]["message"]


async def test_a_tokenizer_is_described_as_lm_eval_reads_it(client, models):
    for path in ("/tokenizer_info", "/v1/tokenizer_info/", "/tokenizer_info?model=org/tiny"):
        info = (await client.get(path)).json()
        assert {"eos_token", "bos_token", "pad_token"} <= info.keys()
        assert info["chat_template"] == models["org/tiny"].chat_template.text
        assert info["tokenizer_class"] == models["org/tiny"].tokenizer.tokenizer_class is not None
        assert info["model_max_length"] == 256
    assert (await client.get("/tokenizer_info?model=other")).status_code == 404


async def test_model_cards_are_those_of_vllm(client):
    card = (await client.get("/v1/models")).json()["data"][0]
    assert (card["root"], card["parent"], card["max_model_len"]) == ("org/tiny", None, 256)
    (permission,) = card["permission"]
    assert permission["object"] == "model_permission"
    assert permission["allow_sampling"]
    assert not permission["allow_fine_tuning"]
    for path in ("/v1/models/org/tiny", "/models/org/tiny", "/v1/models/org/tiny/"):
        assert (await client.get(path)).json() == card
    assert (await client.get("/v1/models//")).status_code == 404


async def test_the_load_is_the_number_of_requests_and_the_info_has_the_limits(client, generator):
    assert (await client.get("/load")).json() == {"server_load": 0}
    info = (await client.get("/server_info")).json()
    assert info["request_limits"] == RequestLimits().model_dump()
    assert info["models"]["org/tiny"]["max_model_len"] == 256
    generator.not_ready = "warming up"
    info = (await client.get("/server_info/")).json()
    assert info["models"]["org/tiny"] == {"ready": False, "reason": "warming up", "num_engines": 0}

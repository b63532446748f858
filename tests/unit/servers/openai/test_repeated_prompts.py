"""Answers that repeat their prompts, in as many choices as there are."""

import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.servers.openai.sampling_settings import check_num_repeated
from rayinfer.servers.openai.schemas import CompletionBody
from rayinfer.servers.request_limits import RequestLimits

LIMITS = RequestLimits()
BODY = CompletionBody(prompt="a", return_token_ids=True)


def test_as_many_characters_as_are_allowed_are_echoed_and_one_more_is_refused():
    text = "a" * (LIMITS.max_repeated_chars // 128)
    check_num_repeated(BODY, 128, [[1]], [text], LIMITS)
    with pytest.raises(InvalidParameter, match="would repeat 4194432 characters") as refused:
        check_num_repeated(BODY, 128, [[1]], [text + "a"], LIMITS)
    assert refused.value.param == "echo"


def test_as_many_token_ids_as_are_allowed_are_repeated_and_more_are_refused():
    prompts = [[1] * (LIMITS.max_repeated_token_ids // 128)]
    check_num_repeated(BODY, 64, prompts * 2, None, LIMITS)
    check_num_repeated(CompletionBody(prompt="a"), 128, prompts * 2, None, LIMITS)  # which repeats none
    with pytest.raises(InvalidParameter, match="would repeat 266240 token ids") as refused:
        check_num_repeated(BODY, 65, prompts * 2, None, LIMITS)
    assert refused.value.param == "return_token_ids"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
async def test_both_endpoints_refuse_them_before_anything_is_generated(client, generator, path):
    generator.max_model_len = 10_000
    text = "a b " * 2000
    asked = {"prompt": text, "messages": [{"role": "user", "content": text}], "n": 128, "return_token_ids": True}
    response = await client.post(path, json=asked)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "return_token_ids"
    assert not generator.requests

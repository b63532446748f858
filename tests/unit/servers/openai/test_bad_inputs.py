"""A table of bad inputs over all paths of OpenAI's protocol: each is refused by its field, and harms no other."""

import json

import pytest

TEXT, CHAT, TOKENIZE, DETOKENIZE = "/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"
USER = {"role": "user", "content": "hi"}
GOOD = {TEXT: {"prompt": "hi"}, CHAT: {"messages": [USER]}, TOKENIZE: {"prompt": "hi"}, DETOKENIZE: {"tokens": [5]}}

# Path, fields beside those of a good request (None removes the good ones), status and the field at fault.
FIELDS = [
    (TEXT, {"prompt": None}, 400, "prompt"),
    (TEXT, {"prompt": ""}, 400, "prompt"),
    (TEXT, {"prompt": []}, 400, "prompt"),
    (TEXT, {"prompt": [[]]}, 400, "prompt"),
    (TEXT, {"prompt": ["a", 5]}, 400, "prompt"),
    (TEXT, {"prompt": [5, -1]}, 400, "prompt"),
    (TEXT, {"prompt": [384]}, 400, "prompt"),
    (TEXT, {"prompt": [5.5]}, 400, "prompt"),
    (TEXT, {"prompt": {"text": "a"}}, 400, "prompt"),
    (TEXT, {"prompt": ["a"] * 1025}, 400, "prompt"),
    (TEXT, {"prompt": [5] * 256}, 400, "prompt"),
    (TEXT, {"prompt": "a b " * 2000}, 400, "prompt"),
    (TEXT, {"model": "other"}, 404, "model"),
    (TEXT, {"model": 5}, 400, "model"),
    (TEXT, {"n": 0}, 400, "n"),
    (TEXT, {"n": 129}, 400, "n"),
    (TEXT, {"n": True}, 400, "n"),
    (TEXT, {"prompt": ["a"] * 9, "n": 128}, 400, "n"),
    (TEXT, {"best_of": 0}, 400, "best_of"),
    (TEXT, {"best_of": 129}, 400, "best_of"),
    (TEXT, {"best_of": 2, "n": 3}, 400, "best_of"),
    (TEXT, {"suffix": "b"}, 400, "suffix"),
    (TEXT, {"max_tokens": 0}, 400, "max_tokens"),
    (TEXT, {"max_tokens": "5"}, 400, "max_tokens"),
    (TEXT, {"max_tokens": 1e300}, 400, "max_tokens"),
    (TEXT, {"min_tokens": 17}, 400, "min_tokens"),
    (TEXT, {"temperature": 2.5}, 400, "temperature"),
    (TEXT, {"temperature": "1"}, 400, "temperature"),
    (TEXT, {"top_p": 0}, 400, "top_p"),
    (TEXT, {"top_k": -2}, 400, "top_k"),
    (TEXT, {"min_p": 1.5}, 400, "min_p"),
    (TEXT, {"seed": 2**64}, 400, "seed"),
    (TEXT, {"seed": -(2**63) - 1}, 400, "seed"),
    (TEXT, {"seed": 0.5}, 400, "seed"),
    (TEXT, {"stop": ""}, 400, "stop"),
    (TEXT, {"stop": ["a"] * 17}, 400, "stop"),
    (TEXT, {"stop_token_ids": [384]}, 400, "stop_token_ids"),
    (TEXT, {"logit_bias": {"384": 1}}, 400, "logit_bias"),
    (TEXT, {"logit_bias": {"5": 101}}, 400, "logit_bias"),
    (TEXT, {"allowed_token_ids": []}, 400, "allowed_token_ids"),
    (TEXT, {"bad_words": [""]}, 400, "bad_words"),
    (TEXT, {"repetition_penalty": 0}, 400, "repetition_penalty"),
    (TEXT, {"presence_penalty": 3}, 400, "presence_penalty"),
    (TEXT, {"logprobs": -1}, 400, "logprobs"),
    (TEXT, {"logprobs": 21}, 400, "logprobs"),
    (TEXT, {"prompt_logprobs": -2}, 400, "prompt_logprobs"),
    (TEXT, {"prompt_logprobs": -1, "stream": True}, 400, "prompt_logprobs"),
    (TEXT, {"prompt_logprobs": True}, 400, "prompt_logprobs"),
    (TEXT, {"logprob_token_ids": [5]}, 400, "logprob_token_ids"),
    (TEXT, {"logprob_token_ids": [384], "logprobs": 0}, 400, "logprob_token_ids"),
    (TEXT, {"logprob_token_ids": [5] * 129, "logprobs": 0}, 400, "logprob_token_ids"),
    (TEXT, {"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
    (TEXT, {"truncate_prompt_tokens": -2}, 400, "truncate_prompt_tokens"),
    (TEXT, {"truncate_prompt_tokens": 256}, 400, "truncate_prompt_tokens"),
    (TEXT, {"truncation_side": "middle"}, 400, "truncation_side"),
    (TEXT, {"stream_options": {"include_usage": True}}, 400, "stream_options"),
    (TEXT, {"stream": 1}, 400, "stream"),
    (TEXT, {"echo": "yes"}, 400, "echo"),
    (TEXT, {"priority": 11}, 400, "priority"),
    (TEXT, {"cache_salt": "a/b"}, 400, "cache_salt"),
    (TEXT, {"request_id": 5}, 400, "request_id"),
    (TEXT, {"speculation": "on"}, 400, "speculation"),
    (TEXT, {"speculation": 0}, 400, "speculation"),
    (TEXT, {"speculation": 17}, 400, "speculation"),
    (TEXT, {"speculation": True}, 400, "speculation"),
    (TEXT, {"speculation": ["auto"]}, 400, "speculation"),
    (CHAT, {"speculation": 2.5}, 400, "speculation"),
    (TEXT, {"metadata": {"a": 1}}, 400, "metadata.a"),
    (TEXT, {"guided_json": {}}, 400, "guided_json"),
    (TEXT, {"use_beam_search": 1}, 400, "use_beam_search"),
    (TEXT, {"use_beam_search": True, "stream": True}, 400, "stream"),
    (TEXT, {"use_beam_search": True, "temperature": 0.5}, 400, "temperature"),
    (TEXT, {"use_beam_search": True, "stop": ["a"]}, 400, "stop"),
    (TEXT, {"use_beam_search": True, "length_penalty": 11}, 400, "length_penalty"),
    (TEXT, {"length_penalty": 2}, 400, "length_penalty"),
    (CHAT, {"use_beam_search": True, "response_format": {"type": "json_object"}}, 400, "response_format"),
    (TEXT, {"top_logprobs": 2}, 400, "top_logprobs"),
    (TEXT, {"documents": [{}]}, 400, "documents"),
    (CHAT, {"messages": None}, 400, "messages"),
    (CHAT, {"messages": []}, 400, "messages"),
    (CHAT, {"messages": "hi"}, 400, "messages"),
    (CHAT, {"messages": ["hi"]}, 400, "messages.0"),
    (CHAT, {"messages": [{"content": "hi"}]}, 400, "messages.0.role"),
    (CHAT, {"messages": [{"role": "x", "content": "hi"}]}, 400, "messages.0.role"),
    (CHAT, {"messages": [{"role": "user"}]}, 400, "messages.0.content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages.0.content.0.type"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, 400, "messages.0.content.0.text"),
    (CHAT, {"messages": [USER] * 4097}, 400, "messages"),
    (CHAT, {"logprobs": 5}, 400, "logprobs"),
    (CHAT, {"top_logprobs": 5}, 400, "top_logprobs"),
    (CHAT, {"top_logprobs": -1, "logprobs": True}, 400, "top_logprobs"),
    (CHAT, {"logprob_token_ids": [5]}, 400, "logprob_token_ids"),
    (CHAT, {"tools": []}, 400, "tools"),
    (CHAT, {"tools": [{}]}, 400, "tools.0.type"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, "tools.0.function.name"),
    (CHAT, {"tools": [{"type": "function", "function": {"name": "a"}}] * 2}, 400, "tools"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice"),
    (CHAT, {"tool_choice": {"type": "function", "function": {"name": "a"}}}, 400, "tool_choice"),
    (CHAT, {"functions": []}, 400, "functions"),
    (CHAT, {"response_format": {"type": "json_object"}}, 400, "response_format"),
    (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, 400, "continue_final_message"),
    (CHAT, {"chat_template": "{{ 1 }}"}, 400, "chat_template"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs.messages"),
    (CHAT, {"documents": "x"}, 400, "documents"),
    (CHAT, {"reasoning_effort": "huge"}, 400, "reasoning_effort"),
    (CHAT, {"modalities": ["audio"]}, 400, "modalities"),
    (CHAT, {"echo": True}, 400, "echo"),
    (CHAT, {"model": "other"}, 404, "model"),
    (TOKENIZE, {"prompt": None}, 400, "prompt"),
    (TOKENIZE, {"prompt": 5}, 400, "prompt"),
    (TOKENIZE, {"messages": [USER]}, 400, "prompt"),
    (TOKENIZE, {"prompt": None, "messages": []}, 400, "messages"),
    (TOKENIZE, {"prompt": None, "messages": [USER], "chat_template": "x"}, 400, "chat_template"),
    (TOKENIZE, {"return_token_strs": "yes"}, 400, "return_token_strs"),
    (TOKENIZE, {"truncate_prompt_tokens": 0}, 400, "truncate_prompt_tokens"),
    (TOKENIZE, {"model": "other"}, 404, "model"),
    (DETOKENIZE, {"tokens": None}, 400, "tokens"),
    (DETOKENIZE, {"tokens": "5"}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [-1]}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [384]}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [True]}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [2**70]}, 400, "tokens"),
    (DETOKENIZE, {"tokens": [[5]]}, 400, "tokens"),
    (DETOKENIZE, {"model": "other"}, 404, "model"),
]
RAW = [
    (b"", 400),
    (b"{", 400),
    (b"[]", 400),
    (b'"x"', 400),
    (b"null", 400),
    (b'{"prompt": "a"} x', 400),
    (b'{"temperature": NaN}', 400),
    (b'{"prompt": "\xff"}', 400),
    (b'{"prompt": "\\ud800"}', 400),
    (b"[" * 5000, 400),
    (b'{"prompt": "' + b"a" * 200_000 + b'"}', 413),
]
REQUESTS = [
    ("GET", TEXT, 405),
    ("DELETE", "/v1/models", 405),
    ("POST", "/v1/models/org/tiny", 405),
    ("GET", "/v1/models/other", 404),
    ("GET", "/v1/models//", 404),
    ("GET", "/tokenizer_info?model=other", 404),
    ("PUT", TOKENIZE, 405),
    ("POST", "/version", 405),
    ("POST", "/load", 405),
    ("GET", "/v1/nothing", 404),
    ("POST", "/v1/embeddings", 400),
    ("POST", "/v1/score", 400),
]


async def check_refused(client, response, path, status, param=None):
    assert response.status_code == status, response.text[:300]
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["type"], error["param"]) == ("invalid_request_error", param)
    assert 0 < len(error["message"]) <= 1000
    assert (await client.post(path, json=GOOD[path])).status_code == 200


@pytest.mark.parametrize("path", GOOD)
async def test_a_bad_field_is_refused_by_its_name_and_the_next_request_is_answered(client, path):
    for _, fields, status, param in (each for each in FIELDS if each[0] == path):
        await check_refused(client, await client.post(path, json=GOOD[path] | fields), path, status, param)


@pytest.mark.parametrize("path", GOOD)
async def test_a_bad_body_is_refused_and_the_next_request_is_answered(client, path):
    headers = {"content-type": "application/json"}
    for raw, status in RAW:
        response = await client.post(path, content=raw, headers=headers)
        param = response.json()["error"]["param"]  # that of a value which is no JSON, if it has a name
        await check_refused(client, response, path, status, param)
    for wrong in ({"content-type": "text/plain"}, {"content-encoding": "gzip"}):
        response = await client.post(path, content=json.dumps(GOOD[path]), headers=headers | wrong)
        await check_refused(client, response, path, 415)


async def test_a_bad_request_is_refused_and_the_next_one_is_answered(client):
    for method, path, status in REQUESTS:
        response = await client.request(method, path)
        await check_refused(client, response, TEXT, status, "model" if "other" in path or path[-2:] == "//" else None)

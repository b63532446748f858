import json

import pytest

from rayinfer.errors import RequestFailed, RequestTimedOut
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.openai.chunks import CHAT, COMPLETION, ChunkWriter
from rayinfer.servers.openai.response_settings import ResponseSettings


def settings(**fields) -> ResponseSettings:
    return ResponseSettings(
        **{"id": "x-1", "created": 17, "model": 'a"b', "prompts": [[1, 2]], "num_choices": 1, **fields}
    )


def output(
    text: str, token_ids: list[int], index: int = 0, reason=None, stop_reason=None, prompt: int = 0
) -> PromptOutput:
    completion = CompletionOutput(
        index=index, text=text, token_ids=token_ids, finish_reason=reason, stop_reason=stop_reason
    )
    return PromptOutput(
        prompt, RequestOutput(request_id="r", prompt_token_ids=[], outputs=[completion], num_cached_tokens=1)
    )


def test_a_chat_stream_is_written_byte_for_byte():
    writer = ChunkWriter(settings(with_usage=True), CHAT)
    head = b'data: {"id":"x-1","object":"chat.completion.chunk","created":17,"model":"a\\"b","choices":['
    assert writer.opening() == (
        head + b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        b',"usage":null}\n\n'
    )
    assert writer.write(output('say "hi"\n', [5, 9])) == (
        head + b'{"index":0,"delta":{"content":"say \\"hi\\"\\n"},"logprobs":null,"finish_reason":null}]'
        b',"usage":null}\n\n'
    )
    assert writer.write(output("", [6], reason="stop", stop_reason="END")) == (
        head + b'{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop","stop_reason":"END"}],"usage":null}\n\n'
    )
    assert writer.ending() == (
        head + b'],"usage":{"prompt_tokens":2,"completion_tokens":3,"total_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":1}}}\n\ndata: [DONE]\n\n'
    )


def test_a_completion_stream_is_written_byte_for_byte():
    writer = ChunkWriter(settings(), COMPLETION)
    head = b'data: {"id":"x-1","object":"text_completion","created":17,"model":"a\\"b","choices":[{"index":0,'
    assert writer.opening() == b""
    assert writer.write(output("é😀", [5, 6], reason="length")) == (
        head
        + '"text":"é😀","logprobs":null,"finish_reason":null}]}\n\n'.encode()
        + head
        + b'"text":"","logprobs":null,"finish_reason":"length","stop_reason":null}]}\n\n'
    )
    assert writer.ending() == b"data: [DONE]\n\n"


def test_tokens_without_text_make_no_chunk_but_are_counted():
    writer = ChunkWriter(settings(with_usage=True), CHAT)
    assert writer.write(output("", [240])) == b""
    writer.write(output("😀", [159], reason="stop"))
    assert b'"completion_tokens":2' in writer.ending()


def test_choices_of_all_prompts_are_numbered_through():
    writer = ChunkWriter(settings(prompts=[[1], [2]], num_choices=2), COMPLETION)
    assert b'"index":3,' in writer.write(output("x", [5], index=1, prompt=1))


def test_the_usage_so_far_can_be_in_every_chunk():
    writer = ChunkWriter(settings(with_usage=True, with_usage_in_every_chunk=True), COMPLETION)
    for total in (3, 4):
        chunk = json.loads(writer.write(output("x", [5])).removeprefix(b"data: "))
        assert chunk["usage"]["total_tokens"] == total


def test_token_ids_are_sent_on_request_and_the_prompts_once():
    writer = ChunkWriter(settings(with_token_ids=True), COMPLETION)
    first = json.loads(writer.write(output("", [5])).removeprefix(b"data: "))["choices"][0]
    second = json.loads(writer.write(output("x", [6, 7])).removeprefix(b"data: "))["choices"][0]
    assert (first["token_ids"], first["prompt_token_ids"]) == ([5], [1, 2])
    assert second["token_ids"] == [6, 7]
    assert "prompt_token_ids" not in second
    chat = ChunkWriter(settings(with_token_ids=True), CHAT)
    assert json.loads(chat.opening().removeprefix(b"data: "))["prompt_token_ids"] == [1, 2]


def test_a_choice_that_ends_badly_is_raised():
    writer = ChunkWriter(settings(), CHAT)
    with pytest.raises(RequestTimedOut):
        writer.write(output("", [], reason="timeout"))
    with pytest.raises(RequestFailed):
        writer.write(output("", [], reason="error"))


def test_a_stream_does_not_end_before_all_its_choices_have():
    writer = ChunkWriter(settings(num_choices=2), CHAT)
    writer.write(output("x", [5], index=0, reason="stop"))
    with pytest.raises(RequestFailed):
        writer.ending()


@pytest.mark.parametrize("fields", [{"echoed_texts": ["a" * 20_000]}, {"with_token_ids": True}])
def test_a_stream_is_slow_until_it_has_repeated_its_long_prompt(fields):
    writer = ChunkWriter(settings(prompts=[[5] * 20_000], **fields), COMPLETION)
    assert writer.is_slow
    writer.write(output(text="b", token_ids=[7]))
    assert not writer.is_slow


def test_the_opening_of_a_chat_is_slow_with_a_long_prompt_and_what_follows_is_not():
    writer = ChunkWriter(settings(prompts=[[5] * 20_000], with_token_ids=True), CHAT)
    assert writer.has_slow_opening
    assert not writer.is_slow
    assert not ChunkWriter(settings(with_token_ids=True), CHAT).has_slow_opening

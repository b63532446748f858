import json
from dataclasses import replace

import pytest

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.outputs import CompletionOutput, RequestOutput
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.chat import ChatAnswer, ChatRequest, SingleAnswer, prepare_chat
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.openai.chunks import CHAT, ChunkWriter
from rayinfer.servers.openai.response_aggregate import ResponseAggregate
from rayinfer.servers.openai.response_settings import ResponseSettings
from rayinfer.tool_calls.deltas import ReasoningDelta, TextDelta, ToolCallDelta


class MarkedParser:
    """A parser of `R` for reasoning, `C` for the beginning of a call and `A` for its arguments; the rest is text."""

    def add(self, text, token_ids):
        kinds = {
            "R": lambda rest: ReasoningDelta(rest),
            "C": lambda rest: ToolCallDelta(index=0, id="call_1", name=rest),
            "A": lambda rest: ToolCallDelta(index=0, arguments=rest),
        }
        return [kinds.get(part[0], TextDelta)(part[1:] if part[0] in kinds else part) for part in text.split("|")]

    def end(self):
        return [TextDelta("held")]

    num_reasoning_tokens = 1


def output(text, reason=None):
    completion = CompletionOutput(index=0, text=text, token_ids=[1], finish_reason=reason)
    return PromptOutput(0, RequestOutput(request_id="a", prompt_token_ids=[5], outputs=[completion], finished=False))


OUTPUTS = (output("Rhm"), output("yes|Cfind"), output('A{"a":'), output("A1}", "stop"))


def settings():
    return ResponseSettings(
        id="c", created=1, model="m", prompts=[[5]], num_choices=1, new_answer=lambda: ChatAnswer(MarkedParser())
    )


def test_a_stream_has_deltas_in_the_order_of_the_model():
    writer = ChunkWriter(settings(), CHAT)
    events = b"".join(map(writer.write, OUTPUTS)).decode().split("\n\n")[:-1]
    choices = [json.loads(event[6:])["choices"][0] for event in events]
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "find", "arguments": ""}}
    assert [choice["delta"] for choice in choices] == [
        {"reasoning_content": "hm", "reasoning": "hm"},
        {"content": "yes"},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"content": "held"},
        {},
    ]
    assert choices[-1]["finish_reason"] == "tool_calls"


def test_a_whole_answer_has_reasoning_and_tool_calls():
    aggregate = ResponseAggregate(settings())
    for each in OUTPUTS:
        aggregate.add(each)
    (choice,) = aggregate.chat_completion()["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("yesheld", "hm")
    assert message["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"a":1}'}


def test_a_call_cut_by_length_ends_with_length():
    answer = ChatAnswer(MarkedParser())
    for text, reason in (("Rhm", None), ("Cfind", None), ("A{", "length")):
        answer.add(CompletionOutput(index=0, text=text, token_ids=[1, 2], finish_reason=reason))
    assert (answer.finish_reason, answer.num_tokens, answer.num_reasoning_tokens) == ("length", 6, 1)


def test_a_conversation_becomes_a_request_for_the_service(models):
    request = ChatRequest(
        model=models["org/tiny"],
        params=SamplingParams(max_tokens=3),
        messages=[{"role": "user", "content": "hello"}],
        priority=2,
        cache_salt="salt",
    )
    service = GenerationService(models, None, None)
    chat = prepare_chat(request, service)
    generation = chat.generation
    assert generation.prompts == [chat.prompt]
    assert (generation.priority, generation.cache_salt, generation.operation) == (2, "salt", "chat")
    assert chat.prompt == models["org/tiny"].tokenizer.encode(chat.text, add_special_tokens=False)
    with pytest.raises(InvalidParameter) as refusal:
        prepare_chat(replace(request, messages=[{}], messages_field="input"), service)
    assert refusal.value.param


def test_an_answer_without_its_end_is_an_error(models):
    messages = [{"role": "user", "content": "hello"}]
    request = ChatRequest(model=models["org/tiny"], params=SamplingParams(), messages=messages)
    chat = prepare_chat(request, GenerationService(models, None, None))
    answer = SingleAnswer(chat)
    assert answer.add(output("Hello")) == [TextDelta("Hello")]
    with pytest.raises(RequestFailed):
        answer.check_is_complete()

"""Checks of Anthropic's official client for Python."""

import sys
from pathlib import Path

import anthropic

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]


def client(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True)


def check_a_message(url: str, model: str) -> None:
    message = client(url).messages.create(model=model, max_tokens=24, messages=QUESTION, system="Answer briefly.")
    assert message.content[0].text
    assert message.usage.output_tokens > 0
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message._request_id


def check_a_stream_equals_the_whole(url: str, model: str) -> None:
    settings = {"model": model, "max_tokens": 24, "messages": QUESTION, "extra_body": {"temperature": 0}}
    whole = client(url).messages.create(**settings)
    with client(url).messages.stream(**settings) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert final.stop_reason == whole.stop_reason


def check_raw_events(url: str, model: str) -> None:
    events = client(url).messages.create(model=model, max_tokens=4, messages=QUESTION, stream=True)
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def check_thinking(url: str, model: str) -> None:
    budget = {"type": "enabled", "budget_tokens": 1024}
    settings = {"model": model, "messages": QUESTION, "thinking": budget, "stop_sequences": ["."]}
    assert client(url).messages.create(max_tokens=1025, **settings).content
    try:
        client(url).messages.create(max_tokens=1024, **settings)
    except anthropic.BadRequestError as error:
        assert "budget_tokens" in error.message
    else:
        raise AssertionError("a budget of max_tokens was accepted")


def check_stop_sequences(url: str, model: str) -> None:
    message = client(url).messages.create(
        model=model, max_tokens=24, messages=QUESTION, stop_sequences=["Paris"], extra_body={"temperature": 0}
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Paris")


def check_counted_tokens_are_those_of_the_message(url: str, model: str) -> None:
    count = client(url).messages.count_tokens(model=model, messages=QUESTION)
    usage = client(url).messages.create(model=model, max_tokens=1, messages=QUESTION).usage
    assert count.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def check_a_conversation_of_blocks_is_continued(url: str, model: str) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "What is the capital of France?"}]},
        {"role": "assistant", "content": "The capital of France is"},
    ]
    message = client(url).messages.create(model=model, max_tokens=8, messages=messages, extra_body={"temperature": 0})
    assert "Paris" in message.content[0].text


def check_models(url: str, model: str) -> None:
    assert model in [each.id for each in client(url).models.list()]
    assert client(url).models.retrieve(model).display_name == model


def check_the_asynchronous_client(url: str, model: str):
    async def ask() -> None:
        asynchronous = anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        async with asynchronous.messages.stream(model=model, max_tokens=8, messages=QUESTION) as stream:
            assert (await stream.get_final_message()).content

    return ask()


def check_errors_are_typed(url: str, model: str) -> None:
    for expected, kind, settings in (
        (anthropic.NotFoundError, "not_found_error", {"model": "unknown"}),
        (anthropic.BadRequestError, "invalid_request_error", {"messages": []}),
        (anthropic.BadRequestError, "invalid_request_error", {"extra_body": {"temperature": 9}}),
    ):
        try:
            client(url).messages.create(**({"model": model, "max_tokens": 4, "messages": QUESTION} | settings))
        except expected as error:
            assert error.body["error"]["type"] == kind
            assert error.request_id
        else:
            raise AssertionError(f"{settings} was accepted")


def check_tools_and_their_results(url: str, model: str) -> None:
    messages = client(url).messages
    settings = {"model": model, "max_tokens": 300, "tools": [TOOL], "extra_body": {"temperature": 0}}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather"}):
        asked = messages.create(messages=ASK, tool_choice=choice, **settings)
        (block,) = asked.content
        assert (asked.stop_reason, block.type, block.name) == ("tool_use", "tool_use", "get_weather")
        assert block.input["city"]
        with messages.stream(messages=ASK, tool_choice=choice, **settings) as stream:
            streamed = stream.get_final_message()
        assert streamed.content[0].input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": '{"temperature": 31}'}
    history = [*ASK, {"role": "assistant", "content": asked.content}, {"role": "user", "content": [result]}]
    answer = messages.create(messages=history, tool_choice={"type": "none"}, **settings)
    assert "31" in answer.content[0].text


def check_tools_count_as_tokens(url: str, model: str) -> None:
    count = client(url).messages.count_tokens
    without = count(model=model, messages=ASK).input_tokens
    assert count(model=model, messages=ASK, tools=[TOOL]).input_tokens > without + 50


if __name__ == "__main__":
    run_checks(globals())

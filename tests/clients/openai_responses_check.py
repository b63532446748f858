"""Checks of the Responses API with the official OpenAI client for Python and its strict validation."""

import json
import sys
import time
from pathlib import Path

import openai

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

QUESTION = "What is the capital of France?"
SETTINGS = {"input": QUESTION, "max_output_tokens": 24, "temperature": 0}

WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}, "unit": {"enum": ["celsius", "fahrenheit"]}},
        "required": ["city", "unit"],
        "additionalProperties": False,
    },
}
ASK = [{"role": "user", "content": "What is the weather in Paris in celsius?"}]
TOOL = {"type": "function", "strict": True, **WEATHER}


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def check_a_response(url: str, model: str) -> None:
    response = client(url).responses.create(model=model, **SETTINGS)
    assert "Paris" in response.output_text
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens
    assert client(url).responses.retrieve(response.id).output_text == response.output_text


def check_a_stream_equals_the_whole(url: str, model: str) -> None:
    whole = client(url).responses.create(model=model, **SETTINGS)
    with client(url).responses.stream(model=model, **SETTINGS) as stream:
        events = list(stream)
        final = stream.get_final_response()
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens


def check_raw_events_are_numbered(url: str, model: str) -> None:
    events = list(client(url).responses.create(model=model, stream=True, **SETTINGS))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")


def check_a_conversation_goes_on(url: str, model: str) -> None:
    responses = client(url).responses
    first = responses.create(model=model, **SETTINGS)
    second = responses.create(model=model, **SETTINGS | {"input": "And of Italy?"}, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


def check_input_items_and_deletion(url: str, model: str) -> None:
    responses = client(url).responses
    response = responses.create(model=model, **SETTINGS)
    (item,) = responses.input_items.list(response.id).data
    assert item.content[0].text == QUESTION
    responses.delete(response.id)
    try:
        responses.retrieve(response.id)
    except openai.NotFoundError:
        pass
    else:
        raise AssertionError("the response is still there")


def check_the_background(url: str, model: str) -> None:
    responses = client(url).responses
    response = responses.create(model=model, background=True, **SETTINGS)
    until = time.monotonic() + 60
    while response.status in ("queued", "in_progress") and time.monotonic() < until:
        time.sleep(0.1)
        response = responses.retrieve(response.id)
    assert "Paris" in response.output_text
    long = responses.create(model=model, background=True, input="Count to a million.", extra_body={"temperature": 1})
    assert responses.cancel(long.id).status == "cancelled"


def check_errors_are_typed(url: str, model: str) -> None:
    for expected, settings in (
        (openai.NotFoundError, {"model": "unknown"}),
        (openai.BadRequestError, {"temperature": 3}),
        (openai.BadRequestError, {"tools": [{"type": "web_search"}]}),
        (openai.BadRequestError, {"previous_response_id": "resp_none"}),
    ):
        try:
            client(url).responses.create(**({"model": model} | SETTINGS | settings))
        except expected as error:
            assert error.request_id
        else:
            raise AssertionError(f"{settings} was accepted")


def check_tools_and_their_results(url: str, model: str) -> None:
    responses = client(url).responses
    settings = {"model": model, "max_output_tokens": 300, "temperature": 0, "tools": [TOOL]}
    asked = responses.create(input=ASK, tool_choice="required", parallel_tool_calls=False, **settings)
    (call,) = asked.output
    assert (call.type, call.name, set(json.loads(call.arguments))) == ("function_call", "get_weather", {"city", "unit"})
    result = {"type": "function_call_output", "call_id": call.call_id, "output": '{"temperature": 31}'}
    answer = responses.create(input=[result], previous_response_id=asked.id, tool_choice="none", **settings)
    assert "31" in answer.output_text


def check_a_stream_of_calls(url: str, model: str) -> None:
    settings = {"model": model, "input": ASK, "tools": [TOOL], "max_output_tokens": 300, "temperature": 0}
    choice = {"type": "function", "name": "get_weather"}
    with client(url).responses.stream(**settings, tool_choice=choice) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert "response.function_call_arguments.delta" in kinds
    assert kinds.index("response.output_item.added") < kinds.index("response.function_call_arguments.done")
    assert set(json.loads(final.output[0].arguments)) == {"city", "unit"}


if __name__ == "__main__":
    run_checks(globals())

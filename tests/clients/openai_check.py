"""Checks of the official OpenAI client for Python, with its strict validation of responses."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import openai
import pydantic

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

EMBEDDER = "all-minilm-l6-v2"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
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
TOOLS = [{"type": "function", "function": {**WEATHER, "strict": True}}]


class Weather(pydantic.BaseModel):
    city: Annotated[str, pydantic.Field(max_length=40)]
    unit: Literal["celsius", "fahrenheit"]


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True)


def check_models(url: str, model: str) -> None:
    assert model in [each.id for each in client(url).models.list().data]
    assert client(url).models.retrieve(model).id == model


def check_chat(url: str, model: str) -> None:
    answer = client(url).chat.completions.create(model=model, messages=QUESTION, max_tokens=24, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def check_a_chat_stream_equals_the_whole(url: str, model: str) -> None:
    settings = {"model": model, "messages": QUESTION, "max_tokens": 24, "seed": 2**63 - 1, "temperature": 1.0}
    whole = client(url).chat.completions.create(**settings)
    chunks = list(client(url).chat.completions.create(**settings, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def check_the_stream_helper(url: str, model: str) -> None:
    with client(url).chat.completions.stream(model=model, messages=QUESTION, max_tokens=200, temperature=0) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert {"content.delta", "content.done", "chunk"} <= kinds
    assert "Paris" in final.choices[0].message.content


def check_several_choices_through_a_stream(url: str, model: str) -> None:
    stream = client(url).chat.completions.create(
        model=model, messages=QUESTION, n=3, max_tokens=16, seed=1, temperature=1.5, stream=True
    )
    texts = ["", "", ""]
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert len(set(texts)) == 3


def check_log_probabilities_of_a_chat(url: str, model: str) -> None:
    answer = client(url).chat.completions.create(
        model=model, messages=QUESTION, max_tokens=8, logprobs=True, top_logprobs=3, temperature=0
    )
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 3 and entry.logprob == entry.top_logprobs[0].logprob for entry in entries)


def check_a_completion_and_its_stream(url: str, model: str) -> None:
    settings = {"model": model, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = client(url).completions.create(**settings)
    lax = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)  # its type wants a finish_reason always
    text = "".join(chunk.choices[0].text for chunk in lax.completions.create(**settings, stream=True))
    assert text == whole.choices[0].text


def check_token_ids_and_several_prompts(url: str, model: str) -> None:
    texts = client(url).completions.create(model=model, prompt=["Once", "Twice"], max_tokens=4, n=2, temperature=0)
    assert [choice.index for choice in texts.choices] == [0, 1, 2, 3]
    ids = client(url).completions.create(model=model, prompt=[[1, 2, 3], [4, 5]], max_tokens=2)
    assert ids.usage.prompt_tokens == 5


def check_a_scored_echo(url: str, model: str) -> None:
    lax = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)  # the first token has no probability
    answer = lax.completions.create(model=model, prompt="The sky is blue", max_tokens=0, echo=True, logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in logprobs.token_logprobs[1:])
    assert answer.usage.completion_tokens == 0


def check_a_stop_string_is_not_leaked(url: str, model: str) -> None:
    answer = client(url).completions.create(model=model, prompt="1 2 3 4 5 6", stop=["9"], max_tokens=16, temperature=0)
    assert "9" not in answer.choices[0].text


def check_errors_are_typed(url: str, model: str) -> None:
    for expected, settings in (
        (openai.NotFoundError, {"model": "unknown"}),
        (openai.BadRequestError, {"temperature": 3}),
        (openai.BadRequestError, {"messages": []}),
        (openai.BadRequestError, {"messages": [{"role": "user", "content": "word " * 20_000}]}),
    ):
        try:
            client(url).chat.completions.create(**({"model": model, "messages": QUESTION} | settings))
        except expected as error:
            assert error.request_id
            if "word" in str(settings):
                assert error.code == "context_length_exceeded"
        else:
            raise AssertionError(f"{settings} was accepted")


def check_the_request_id_is_returned(url: str, model: str) -> None:
    answer = client(url).chat.completions.create(
        model=model, messages=QUESTION, max_tokens=1, extra_headers={"X-Request-Id": "mine-1"}
    )
    assert answer._request_id == "mine-1"


def check_embeddings(url: str, model: str) -> None:
    texts = ["A man is eating food.", "A man eats something."]
    lax = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)  # it asks for base64 and decodes it
    coded = [each.embedding for each in lax.embeddings.create(model=EMBEDDER, input=texts).data]
    plain = client(url).embeddings.create(model=EMBEDDER, input=texts, encoding_format="float")
    assert plain.usage.prompt_tokens == plain.usage.total_tokens > 0
    for one, other in zip(coded, plain.data, strict=True):
        assert len(one) == 384
        assert max(abs(a - b) for a, b in zip(one, other.embedding, strict=True)) < 1e-6
    assert sum(a * b for a, b in zip(*coded, strict=True)) > 0.8


def check_errors_of_embeddings_are_typed(url: str, model: str) -> None:
    for expected, settings in (
        (openai.NotFoundError, {"model": model}),  # it generates
        (openai.BadRequestError, {"input": "word " * 1000}),
        (openai.BadRequestError, {"input": ""}),
        (openai.BadRequestError, {"dimensions": 385}),
    ):
        try:
            client(url).embeddings.create(**({"model": EMBEDDER, "input": "Hi"} | settings), encoding_format="float")
        except expected as error:
            assert error.request_id
        else:
            raise AssertionError(f"{settings} was accepted")


async def check_many_async_streams(url: str, model: str) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key="none", max_retries=0, _strict_response_validation=True
    ) as asynchronous:

        async def text() -> str:
            stream = await asynchronous.chat.completions.create(
                model=model, messages=QUESTION, max_tokens=16, temperature=0, stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        texts = await asyncio.gather(*(text() for _ in range(8)))
    assert len(set(texts)) == 1
    assert "Paris" in texts[0]


def check_a_stream_that_is_left_frees_its_place(url: str, model: str) -> None:
    lax = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    stream = lax.completions.create(model=model, prompt="Once", max_tokens=1500, stream=True)
    next(iter(stream))
    stream.close()
    check_chat(url, model)


def check_required_and_named_calls(url: str, model: str) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
        settings = {"model": model, "messages": ASK, "tools": TOOLS, "tool_choice": choice, "max_tokens": 300}
        whole = client(url).chat.completions.create(**settings, temperature=0).choices[0]
        assert whole.finish_reason == "tool_calls"
        assert whole.message.content is None
        for call in whole.message.tool_calls:
            arguments = json.loads(call.function.arguments)
            assert (call.function.name, set(arguments)) == ("get_weather", {"city", "unit"})
        with client(url).chat.completions.stream(**settings, temperature=0) as stream:
            kinds = {event.type for event in stream}
            streamed = stream.get_final_completion().choices[0]
        assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
        assert [call.function.arguments for call in streamed.message.tool_calls] == [
            call.function.arguments for call in whole.message.tool_calls
        ]


def check_a_conversation_with_results_of_tools(url: str, model: str) -> None:
    settings = {"model": model, "tools": TOOLS, "max_tokens": 300, "temperature": 0}
    asked = client(url).chat.completions.create(
        **settings, messages=ASK, tool_choice="required", parallel_tool_calls=False
    )
    message = asked.choices[0].message
    (call,) = message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 31}'}
    answer = client(url).chat.completions.create(**settings, messages=[*ASK, message, result], tool_choice="none")
    assert "31" in answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls


def check_parsed_tools_and_formats(url: str, model: str) -> None:
    parse = client(url).chat.completions.parse
    tools = [openai.pydantic_function_tool(Weather, name="get_weather")]
    called = parse(model=model, messages=ASK, tools=tools, tool_choice="required", max_tokens=300, temperature=0)
    assert isinstance(called.choices[0].message.tool_calls[0].function.parsed_arguments, Weather)
    text = parse(model=model, messages=ASK, response_format=Weather, max_tokens=100, temperature=0)
    assert isinstance(text.choices[0].message.parsed, Weather)


def check_errors_of_tools_are_typed(url: str, model: str) -> None:
    for settings in ({"tool_choice": "required"}, {"tools": [{"type": "function", "function": {"name": "a b"}}]}):
        try:
            client(url).chat.completions.create(model=model, messages=ASK, **settings)
        except openai.BadRequestError as error:
            assert error.param.startswith("tool")
        else:
            raise AssertionError(f"{settings} was accepted")


if __name__ == "__main__":
    run_checks(globals())

"""Checks of LangChain's OpenAI integration."""

import sys
from pathlib import Path

from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

QUESTION = [SystemMessage("You are a helpful assistant."), HumanMessage("What is the capital of France?")]


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"31 degrees in {city}"


class City(BaseModel):
    """A city."""

    name: str = Field(max_length=40)
    population: int = Field(ge=0, le=99)


def chat(url: str, model: str, **settings: object) -> ChatOpenAI:
    known = {"max_tokens": 24, "temperature": 0, "max_retries": 0} | settings
    return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", **known)


def check_a_chat(url: str, model: str) -> None:
    answer = chat(url, model).invoke(QUESTION)
    assert "Paris" in answer.content
    assert answer.usage_metadata["output_tokens"] > 0
    assert answer.response_metadata["finish_reason"] in ("stop", "length")


def check_a_stream_with_usage(url: str, model: str) -> None:
    chunks = list(chat(url, model, stream_usage=True).stream(QUESTION))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert "Paris" in whole.content
    assert whole.usage_metadata["total_tokens"] > 0


def check_a_batch(url: str, model: str) -> None:
    answers = chat(url, model).batch([QUESTION] * 4)
    assert len({answer.content for answer in answers}) == 1


def check_log_probabilities(url: str, model: str) -> None:
    answer = chat(url, model).bind(logprobs=True, top_logprobs=2).invoke(QUESTION)
    assert len(answer.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def check_a_stop_string(url: str, model: str) -> None:
    assert "Paris" not in chat(url, model).invoke(QUESTION, stop=["Paris"]).content


def check_a_text_completion(url: str, model: str) -> None:
    text = OpenAI(model=model, base_url=f"{url}/v1", api_key="none", max_tokens=8, temperature=0, max_retries=0)
    assert "Paris" in text.invoke("The capital of France is")
    assert "Paris" in "".join(text.stream("The capital of France is"))


def check_embeddings(url: str, model: str) -> None:
    embedder = OpenAIEmbeddings(
        model="all-minilm-l6-v2",
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        check_embedding_ctx_length=False,  # else it sends the token ids of OpenAI's tokenizer
    )
    one, other = embedder.embed_documents(["A man is eating food.", "A man eats something."])
    assert sum(a * b for a, b in zip(one, other, strict=True)) > 0.8
    assert max(abs(a - b) for a, b in zip(one, embedder.embed_query("A man is eating food."), strict=True)) < 1e-6


async def check_an_async_stream(url: str, model: str) -> None:
    pieces = [chunk.content async for chunk in chat(url, model).astream(QUESTION)]
    assert "Paris" in "".join(pieces)


def check_a_context_overflow_is_typed(url: str, model: str) -> None:
    try:
        chat(url, model).invoke("word " * 20_000)
    except ContextOverflowError:
        return
    raise AssertionError("an endless prompt was accepted")


def check_bound_tools(url: str, model: str) -> None:
    bound = chat(url, model, max_tokens=200).bind_tools([get_weather], tool_choice="any", strict=True)
    answer = bound.invoke([HumanMessage("What is the weather in Paris?")])
    assert answer.tool_calls
    assert {call["name"] for call in answer.tool_calls} == {"get_weather"}
    assert get_weather.invoke(answer.tool_calls[0]).content.startswith("31")
    chunks = list(bound.stream([HumanMessage("What is the weather in Paris?")]))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    assert [call["args"] for call in whole.tool_calls] == [call["args"] for call in answer.tool_calls]


def check_structured_outputs(url: str, model: str) -> None:
    question = [HumanMessage("What is the capital of France? Give its name and its population in millions.")]
    for method in ("function_calling", "json_schema"):
        reader = chat(url, model, max_tokens=200).with_structured_output(City, method=method)
        assert isinstance(reader.invoke(question), City), method


if __name__ == "__main__":
    run_checks(globals())

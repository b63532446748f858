"""Checks of LiteLLM, as a client of OpenAI-compatible services and as one of vLLM's."""

import json
import os
import sys
from pathlib import Path

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it downloads a table
import litellm

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
WEATHER = {
    "name": "get_weather",
    "description": "Get the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 40}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


def settings(url: str) -> dict[str, object]:
    return {"api_base": f"{url}/v1", "api_key": "none", "max_tokens": 24, "temperature": 0, "num_retries": 0}


def check_a_chat(url: str, model: str) -> None:
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.completion(model=f"{provider}/{model}", messages=QUESTION, **settings(url))
        assert "Paris" in answer.choices[0].message.content
        assert answer.usage.completion_tokens > 0


def check_a_stream(url: str, model: str) -> None:
    chunks = litellm.completion(
        model=f"hosted_vllm/{model}",
        messages=QUESTION,
        stream=True,
        stream_options={"include_usage": True},
        **settings(url),
    )
    chunks = list(chunks)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert any(getattr(chunk, "usage", None) for chunk in chunks)


def check_a_text_completion(url: str, model: str) -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{model}", prompt="The capital of France is", **settings(url)
    )
    assert "Paris" in answer.choices[0].text


def check_embeddings(url: str, model: str) -> None:
    texts = ["A man is eating food.", "A man eats something."]
    for provider in ("openai", "hosted_vllm"):
        found = litellm.embedding(
            model=f"{provider}/all-minilm-l6-v2", input=texts, api_base=f"{url}/v1", api_key="none"
        )
        one, other = (each["embedding"] for each in found.data)
        assert len(one) == 384
        assert sum(a * b for a, b in zip(one, other, strict=True)) > 0.8


def check_a_reranking(url: str, model: str) -> None:
    documents = ["It rains.", "A man eats something."]
    found = litellm.rerank(
        model="hosted_vllm/all-minilm-l6-v2",
        query="A man is eating food.",
        documents=documents,
        api_base=url,
        api_key="none",
    )
    assert [each["index"] for each in found.results] == [1, 0]


async def check_an_async_chat(url: str, model: str) -> None:
    answer = await litellm.acompletion(model=f"openai/{model}", messages=QUESTION, **settings(url))
    assert "Paris" in answer.choices[0].message.content


def check_errors_are_typed(url: str, model: str) -> None:
    long = [{"role": "user", "content": "word " * 20_000}]
    for expected, messages, name in (
        (litellm.ContextWindowExceededError, long, model),
        (litellm.NotFoundError, QUESTION, "unknown"),
    ):
        try:
            litellm.completion(model=f"openai/{name}", messages=messages, **settings(url))
        except expected:
            continue
        raise AssertionError(f"no {expected.__name__}")


def check_required_calls(url: str, model: str) -> None:
    tools = [{"type": "function", "function": WEATHER}]
    ask = [{"role": "user", "content": "What is the weather in Paris?"}]
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.completion(
            model=f"{provider}/{model}",
            messages=ask,
            tools=tools,
            tool_choice="required",
            **(settings(url) | {"max_tokens": 200}),
        )
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert json.loads(choice.message.tool_calls[0].function.arguments)["city"]


if __name__ == "__main__":
    run_checks(globals())

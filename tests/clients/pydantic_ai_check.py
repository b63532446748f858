"""Checks of pydantic-ai's agents, with a tool and with typed outputs."""

import sys
from pathlib import Path

from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

SETTINGS = {"max_tokens": 200, "temperature": 0}


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


def provider(url: str) -> OpenAIProvider:
    return OpenAIProvider(base_url=f"{url}/v1", api_key="none")


async def check_an_agent(url: str, model: str) -> None:
    answer = await Agent(OpenAIChatModel(model, provider=provider(url)), model_settings=SETTINGS).run(
        "What is the capital of France?"
    )
    assert "Paris" in answer.output
    assert answer.usage.output_tokens > 0


async def check_an_output_by_a_tool(url: str, model: str) -> None:
    agent = Agent(
        OpenAIChatModel(model, provider=provider(url)),
        output_type=ToolOutput(Person, name="person", strict=True),
        model_settings=SETTINGS,
    )
    assert (await agent.run("Anna is 31 years old.")).output == Person(name="Anna", age=31)


async def check_an_output_by_a_schema(url: str, model: str) -> None:
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        agent = Agent(
            kind(model, provider=provider(url)), output_type=NativeOutput(Person, strict=True), model_settings=SETTINGS
        )
        assert isinstance((await agent.run("Anna is 31 years old.")).output, Person)


async def check_a_stream(url: str, model: str) -> None:
    agent = Agent(OpenAIChatModel(model, provider=provider(url)), model_settings=SETTINGS)
    async with agent.run_stream("What is the capital of France?") as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True)]
    assert "Paris" in "".join(pieces)


if __name__ == "__main__":
    run_checks(globals())

"""Checks of instructor, which reads typed objects out of answers."""

import sys
from pathlib import Path

import instructor
import openai
from pydantic import BaseModel, Field

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

ASK = [{"role": "user", "content": "Anna is 31 years old."}]


class Person(BaseModel):
    """A person."""

    name: str = Field(max_length=40)
    age: int = Field(ge=0, le=150)


def read(url: str, model: str, mode: instructor.Mode) -> Person:
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode).chat.completions.create(
        model=model, messages=ASK, response_model=Person, max_retries=0, max_tokens=200, temperature=0
    )


def check_tools(url: str, model: str) -> None:
    person = read(url, model, instructor.Mode.TOOLS)
    assert (person.name, person.age) == ("Anna", 31)


def check_strict_tools(url: str, model: str) -> None:
    assert read(url, model, instructor.Mode.TOOLS_STRICT).age == 31


def check_json_schemas(url: str, model: str) -> None:
    assert isinstance(read(url, model, instructor.Mode.JSON_SCHEMA), Person)


if __name__ == "__main__":
    run_checks(globals())

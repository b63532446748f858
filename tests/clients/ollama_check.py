"""Checks of Ollama's official client for Python."""

import sys
from pathlib import Path

import ollama

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
OPTIONS = {"temperature": 0, "num_predict": 24}

ASK = [{"role": "user", "content": "What is the weather in Paris?"}]


def check_lists_of_models(url: str, model: str) -> None:
    client = ollama.Client(host=url)
    assert f"{model}:latest" in [each.model for each in client.list().models]
    assert f"{model}:latest" in [each.model for each in client.ps().models]
    details = client.show(model)
    assert details.capabilities[0] == "completion"
    assert details.template
    assert details.modelinfo["transformer.context_length"] > 0


def check_a_chat_and_its_stream(url: str, model: str) -> None:
    client = ollama.Client(host=url)
    whole = client.chat(model=f"{model}:latest", messages=QUESTION, options=OPTIONS)
    assert "Paris" in whole.message.content
    assert whole.eval_count > 0
    assert whole.total_duration >= whole.eval_duration > 0
    parts = list(client.chat(model=model, messages=QUESTION, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


def check_a_completion_and_its_stream(url: str, model: str) -> None:
    client = ollama.Client(host=url)
    settings = {"model": model, "prompt": "The capital of France is", "raw": True, "options": OPTIONS}
    whole = client.generate(**settings)
    assert "Paris" in whole.response
    assert "".join(part.response for part in client.generate(**settings, stream=True)) == whole.response
    assert client.generate(model=model).done_reason == "load"


def check_the_asynchronous_client(url: str, model: str):
    async def ask() -> None:
        answer = await ollama.AsyncClient(host=url).chat(model=model, messages=QUESTION, options=OPTIONS)
        assert answer.done_reason in ("stop", "length")

    return ask()


def check_stop_strings(url: str, model: str) -> None:
    options = OPTIONS | {"stop": ["Paris"]}
    answer = ollama.Client(host=url).chat(model=model, messages=QUESTION, options=options)
    assert "Paris" not in answer.message.content
    assert answer.done_reason == "stop"


def check_errors_are_typed(url: str, model: str) -> None:
    client = ollama.Client(host=url)
    for status, ask in (
        (404, lambda: client.chat(model="unknown", messages=QUESTION)),
        (404, lambda: client.show("unknown")),
        (400, lambda: client.chat(model=model, messages=QUESTION, options={"temperature": 9.0})),
        (501, lambda: client.pull(model)),
        (501, lambda: client.delete(model)),
    ):
        try:
            ask()
        except ollama.ResponseError as error:
            assert error.status_code == status, error
            assert error.error
        else:
            raise AssertionError(f"{status} was expected")


def check_tools_and_their_results(url: str, model: str) -> None:
    client = ollama.Client(host=url)

    def get_weather(city: str) -> str:
        """Get the weather in a city.

        Args:
            city: name of the city
        """
        return f"31 degrees in {city}"

    asked = client.chat(model=model, messages=ASK, tools=[get_weather], options={"temperature": 0, "num_predict": 100})
    assert asked.message.role == "assistant"
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    history = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")},
    ]
    answer = client.chat(model=model, messages=history, options={"temperature": 0, "num_predict": 60})
    assert "31" in answer.message.content


if __name__ == "__main__":
    run_checks(globals())

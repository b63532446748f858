"""Sampling options, the same for every command that generates text."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

SAMPLING_PARAMETER = "sampling"

# By the names of SamplingParams and of OpenAI's bodies.
OPTIONS: dict[str, Any] = {
    "max_tokens": Annotated[int, typer.Option(min=1, help="longest answer, in tokens")],
    "temperature": Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="0 always takes the most likely token (default: the model's)")
    ],
    "top_p": Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="keep the most likely tokens up to this total probability (default: the model's)"
        ),
    ],
    "top_k": Annotated[int | None, typer.Option(min=0, help="keep this many of the most likely tokens; 0: all")],
    "min_p": Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="keep tokens of at least this share of the highest probability"),
    ],
    "repetition_penalty": Annotated[
        float | None, typer.Option(help="above 1: penalize tokens of the prompt and the answer")
    ],
    "presence_penalty": Annotated[float | None, typer.Option(min=-2.0, max=2.0, help="penalize tokens of the answer")],
    "frequency_penalty": Annotated[
        float | None, typer.Option(min=-2.0, max=2.0, help="penalize tokens by how often the answer has them")
    ],
    "stop": Annotated[list[str] | None, typer.Option(help="end before this text; may be given several times")],
    "seed": Annotated[int | None, typer.Option(help="seed; the same seed gives the same answer")],
}


def with_sampling_options(**defaults: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add an option per setting to a command, which receives those given or with a default as `sampling`.

    The others are left out, for a service of another make may not know all of them.
    """

    def with_options(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def with_settings(**arguments: Any) -> None:
            settings = {name: arguments.pop(name) for name in OPTIONS}
            given = {name: value for name, value in settings.items() if value is not None and value != []}
            command(**arguments, **{SAMPLING_PARAMETER: given})

        own = [
            parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for name, parameter in inspect.signature(command).parameters.items()
            if name != SAMPLING_PARAMETER
        ]
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=annotation)
            for name, annotation in OPTIONS.items()
        ]
        with_settings.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        with_settings.__annotations__ = {parameter.name: parameter.annotation for parameter in [*own, *options]}
        return with_settings

    return with_options

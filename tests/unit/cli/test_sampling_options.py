import inspect
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from rayinfer.sampling_params import SamplingParams
from rayinfer_deployments.cli.chat import chat
from rayinfer_deployments.cli.generate import generate
from rayinfer_deployments.cli.options.config_options import with_engine_options
from rayinfer_deployments.cli.options.sampling_options import OPTIONS, with_sampling_options


def parse(*arguments):
    """Run a command line and return what the command received."""
    received = {}

    @with_engine_options
    @with_sampling_options(max_tokens=9, temperature=0.5)
    def show(
        prompt: Annotated[str, typer.Argument()] = "p",
        sampling: dict[str, Any] = {},  # noqa: B006
        engine_settings: dict[str, Any] = {},  # noqa: B006
    ) -> None:
        received.update(prompt=prompt, sampling=sampling, settings=engine_settings)

    application = typer.Typer()
    application.command()(show)
    return CliRunner().invoke(application, list(arguments)), received


def test_what_is_not_given_is_left_out_unless_it_has_a_default():
    assert parse("hello")[1] == {
        "prompt": "hello",
        "sampling": {"max_tokens": 9, "temperature": 0.5},
        "settings": {},
    }


def test_every_option_arrives_as_the_library_takes_it():
    given = {"max_tokens": 3, "temperature": 0.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}
    given |= {"presence_penalty": -0.5, "frequency_penalty": 0.5, "stop": ["a", "b"], "seed": 7}
    assert given.keys() == OPTIONS.keys()
    arguments = [
        text
        for name, value in given.items()
        for each in (value if isinstance(value, list) else [value])
        for text in (f"--{name.replace('_', '-')}", str(each))
    ]
    result, received = parse(*arguments)
    assert result.exit_code == 0, result.output
    assert received["sampling"] == given
    assert received["settings"] == {}  # the seed is the request's, not the engine's
    SamplingParams(**given)


@pytest.mark.parametrize("arguments", [["--temperature", "3"], ["--top-k", "x"], ["--presence-penalty", "-3"]])
def test_what_is_out_of_range_is_a_usage_error(arguments):
    assert parse(*arguments)[0].exit_code == 2


def test_temperature_and_top_p_are_the_models_unless_they_are_given():
    for command in (chat, generate):
        parameters = inspect.signature(command).parameters
        assert parameters["temperature"].default is parameters["top_p"].default is None

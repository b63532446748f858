import inspect
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from rayinfer.config import EngineConfig
from rayinfer_deployments.cli.options.config_options import with_engine_options


def parse(*arguments, command=None):
    """Run a command line and return what the command received."""
    received = {}

    @with_engine_options
    def show(
        model: Annotated[str, typer.Argument()] = "m",
        engine_settings: dict[str, Any] = {},  # noqa: B006
    ) -> None:
        received.update(model=model, settings=engine_settings)

    application = typer.Typer()
    application.command()(command or show)
    result = CliRunner().invoke(application, list(arguments))
    return result, received


def test_settings_that_were_not_given_stay_engine_configs_affair():
    _, received = parse()
    assert received == {"model": "m", "settings": {}}


def test_given_settings_arrive_with_their_types():
    arguments = "--dtype float32 --max-num-seqs 3 --memory-fraction 0.5 --seed 7 --num-kv-blocks 24"
    result, received = parse(*arguments.split(" "))
    assert result.exit_code == 0, result.output
    assert received["settings"] == {
        "dtype": "float32",
        "max_num_seqs": 3,
        "memory_fraction": 0.5,
        "seed": 7,
        "num_kv_blocks": 24,
    }
    EngineConfig(**received["settings"])


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("off", "off"), ("4", 4)])
def test_a_choice_of_words_and_numbers_is_given_as_either(text, value):
    result, received = parse("--speculation", text)
    assert result.exit_code == 0, result.output
    assert EngineConfig(**received["settings"]).speculation == value


def test_a_mapping_is_given_as_json():
    result, received = parse("--override-generation-config", '{"temperature": 0.5, "top_k": null}')
    assert result.exit_code == 0, result.output
    assert received["settings"] == {"override_generation_config": {"temperature": 0.5, "top_k": None}}
    EngineConfig(**received["settings"])


def test_switches_can_be_put_off_and_on():
    assert parse("--no-enable-prefix-caching")[1]["settings"] == {"enable_prefix_caching": False}
    assert parse("--enforce-eager")[1]["settings"] == {"enforce_eager": True}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dtype", "int3"],
        ["--max-num-seqs", "many"],
        ["--no-such-setting", "1"],
        ["--override-generation-config", "{"],
        ["--override-generation-config", "[1]"],
    ],
)
def test_what_is_no_setting_is_a_usage_error(arguments):
    assert parse(*arguments)[0].exit_code == 2


def test_every_field_is_an_option_and_nothing_else_is():
    @with_engine_options
    def nothing(engine_settings: dict[str, Any] = {}) -> None:  # noqa: B006
        pass

    assert set(inspect.signature(nothing).parameters) == set(EngineConfig.model_fields)


def test_a_parameter_of_the_command_takes_the_place_of_the_setting():
    received = {}

    @with_engine_options
    def own(
        seed: Annotated[int, typer.Option()] = 5,
        engine_settings: dict[str, Any] = {},  # noqa: B006
    ) -> None:
        received.update(seed=seed, settings=engine_settings)

    parse("--seed", "6", command=own)
    assert received == {"seed": 6, "settings": {}}


def test_help_says_what_a_setting_is_and_its_default():
    output = " ".join(parse("--help")[0].output.replace("│", " ").split())
    assert "tokens in one KV block (default by device: 16 on each)" in output
    assert "largest rank of an adapter (default: 64)" in output
    assert "requests that run at once (default by device: 64 on a CPU, 256 on a GPU)" in output
    assert "(default: on)" in output

import pytest
import typer
from typer.testing import CliRunner

from rayinfer_deployments.cli.chat import chat
from rayinfer_deployments.cli.generate import generate
from support.tiny_models.tiny_checkpoints import make_tiny_llama

ENGINE = ("--num-kv-blocks", "64", "--num-threads", "1", "--dtype", "float32")
GREEDY = ("--override-generation-config", '{"temperature": 0}')


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def answer(model):
    def run(command, *arguments):
        application = typer.Typer()
        application.command()(command)
        place = ("Once upon", "--model", model) if command is generate else (model,)
        result = CliRunner().invoke(application, [*place, "--max-tokens", "12", *ENGINE, *arguments], input="hello\n")
        return result.output if result.exit_code == 0 else pytest.fail(result.output)

    return run


@pytest.mark.parametrize("command", [generate, chat])
def test_the_models_defaults_apply_unless_an_option_is_given(answer, command):
    greedy = answer(command, "--temperature", "0")
    assert answer(command, *GREEDY) == greedy
    assert answer(command, *GREEDY, "--temperature", "1", "--seed", "1") != greedy

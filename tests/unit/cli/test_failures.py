import logging
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line, one_line


def run(error):
    def fail() -> None:
        raise error

    application = typer.Typer(pretty_exceptions_enable=False)
    application.command()(in_one_line(fail))
    return CliRunner().invoke(application, [])


@pytest.mark.parametrize("error", [ConfigError("max_num_seqs:\n must be  at least 1"), OSError("max_num_seqs")])
def test_our_errors_end_the_command_in_one_line(error):
    result = run(error)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: max_num_seqs")
    assert result.stderr.count("\n") == 1


def test_ctrl_c_ends_the_command_as_shells_expect():
    result = run(KeyboardInterrupt())
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_our_own_mistakes_are_not_hidden():
    assert isinstance(run(ZeroDivisionError("x")).exception, ZeroDivisionError)


def test_debug_shows_the_traceback_of_an_error(caplog):
    with caplog.at_level(logging.DEBUG):
        run(ConfigError("wrong"))
    assert caplog.records[0].exc_info[0] is ConfigError


@pytest.mark.parametrize(("end", "code", "said"), [("raise ConfigError('wrong')", 1, "error: wrong\n"), ("", 0, "")])
def test_a_command_leaves_without_waiting_for_its_threads(end, code, said):
    program = f"""
import threading
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli.failures import in_one_line, leave_at_once

def work():
    threading.Thread(target=threading.Event().wait).start()
    {end}

print("working")
leave_at_once(in_one_line(work))()
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert (answer.returncode, answer.stdout, answer.stderr) == (code, "working\n", said)


def test_the_error_of_a_missing_file_names_the_file_and_the_reason(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        (tmp_path / "limits.yaml").read_text()
    assert one_line(missing.value) == f"{tmp_path}/limits.yaml: No such file or directory"


@pytest.mark.parametrize("error", [ConfigError("wrong"), OSError("wrong"), FileNotFoundError(2, "wrong", "file")])
def test_notes_of_an_error_are_shown_behind_it(error):
    error.add_note("Ray's logs: /tmp/ray-x")
    assert run(error).stderr.endswith("wrong; Ray's logs: /tmp/ray-x\n")

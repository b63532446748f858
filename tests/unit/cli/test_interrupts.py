import subprocess
import sys

import pytest

from support.tiny_models.tiny_checkpoints import make_tiny_llama

PROGRAM = """
import os, signal
from rayinfer_deployments.cli.failures import interrupt_on_signals
signal.signal(signal.SIGHUP, signal.{before})
interrupt_on_signals()
try:
    os.kill(os.getpid(), signal.{number})
    print("went on")
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("number", "before", "said"),
    [
        ("SIGINT", "SIG_DFL", "interrupted"),
        ("SIGTERM", "SIG_DFL", "interrupted"),
        ("SIGHUP", "SIG_DFL", "interrupted"),
        ("SIGHUP", "SIG_IGN", "went on"),  # what nohup does
    ],
)
def test_sigterm_and_sighup_end_a_command_like_ctrl_c(number, before, said):
    program = PROGRAM.format(number=number, before=before)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == said


def test_an_interrupted_comparison_ends_its_peers_first(tmp_path):
    model = make_tiny_llama(tmp_path / "tiny")
    program = f"""
import os, signal, sys
from rayinfer.benchmark.peers import comparison

def compare(*_):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        print("the peers have ended")

comparison.run_comparison = compare
sys.argv = ["rayinfer", "bench", "peers", "--model", {str(model)!r}]
from rayinfer_deployments.cli import main
main()
"""
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert answer.returncode == 130
    assert "the peers have ended" in answer.stdout

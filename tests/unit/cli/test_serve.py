import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from rayinfer_deployments.cli.serve import interrupt_on_signals
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
def test_the_service_ends_tidily_when_it_is_told_to_or_its_terminal_closes(number, before, said):
    program = PROGRAM.format(number=number, before=before)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == said

import subprocess
import sys
import time

import pytest

from rayinfer.startup_steps import CountedStartupStep, startup_step
from support.fakes.recorded_steps import ended, recorded_steps

PAUSE_S = 0.02
LOGGED = """
import logging
from rayinfer.startup_steps import LOGGER, startup_step
logging.basicConfig(level=logging.DEBUG)
LOGGER.setLevel(logging.INFO)
logging.getLogger("other").info("seen")
with startup_step("reading"):
    pass
"""


def test_a_step_reports_its_begin_and_how_long_it_took():
    with recorded_steps() as steps, startup_step("reading"):
        assert [(step.name, step.seconds) for step in steps] == [("reading", None)]
        time.sleep(PAUSE_S)
    assert ended(steps) == ["reading"]
    assert PAUSE_S <= steps[-1].seconds < 10


def test_a_step_that_fails_reports_no_end():
    with recorded_steps() as steps, pytest.raises(OSError, match="full"), startup_step("keeping"):
        raise OSError("full")
    assert len(steps) == 1
    assert ended(steps) == []


def test_a_counted_step_is_over_with_its_last_part():
    with recorded_steps() as steps:
        compiling = CountedStartupStep("compiling")
        assert steps == []
        for num_done in range(3):
            compiling(num_done, 2)
            time.sleep(PAUSE_S)
    assert [(step.num_done, step.num_parts, step.seconds is None) for step in steps] == [
        (0, 2, True),
        (1, 2, True),
        (2, 2, False),
    ]
    assert 2 * PAUSE_S <= steps[-1].seconds < 10


def test_steps_are_no_lines_of_anybodys_log():
    found = subprocess.run([sys.executable, "-c", LOGGED], capture_output=True, text=True, check=True, timeout=60)
    assert (found.stdout, found.stderr) == ("", "INFO:other:seen\n")

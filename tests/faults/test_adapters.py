"""Engines are killed under streams of a thousand adapters, of which each engine has a few in memory."""

import random
import time
from pathlib import Path

import pytest

from support.faults.fault_adapters import expected_answers, make_adapters, random_numbers
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, kill_again_and_again, under_load
from support.faults.faulty_service import FaultyService

pytestmark = pytest.mark.faults

NUM_ADAPTERS, NUM_RESIDENT, NUM_SLOTS = 1000, 32, 8
NUM_TOKENS, NUM_STREAMS, WHOLE_PER_S = 32, 12, 2.0
NUM_KILLS, USUAL_S = 20, 600.0
WITHOUT_S = 10.0


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    return make_adapters(tmp_path_factory.mktemp("adapters"), Path(tiny.settings["model"]), NUM_ADAPTERS)


@pytest.fixture(scope="module")
def answers(tiny, folders):
    return expected_answers(Path(tiny.settings["model"]), folders, max_tokens=NUM_TOKENS)


@pytest.fixture(scope="module")
def adapted(host, tiny, folders):
    """Two engines of the tiny model, whose router serves every adapter of a folder."""
    lora = {"enable_lora": True, "max_loras": NUM_SLOTS, "max_cpu_loras": NUM_RESIDENT, "max_lora_rank": 4}
    service = FaultyService(host, "adapted", [tiny.args(lora_folder=str(folders[0].parent), **lora)])
    with service.switched(slow_steps=tiny.step_s):
        yield service
    service.delete()


def load_settings():
    numbers = random_numbers(NUM_ADAPTERS, num_popular=NUM_RESIDENT, seed=3)
    return {"num_streams": NUM_STREAMS, "whole_per_s": WHOLE_PER_S, "numbers": numbers}


def test_a_thousand_adapters_answer_exactly_while_engines_are_killed(adapted, answers, report, pytestconfig):
    seconds = pytestconfig.getoption("--adapter-seconds")
    wanted = max(2, round(NUM_KILLS * seconds / USUAL_S))
    row, draw = FaultRow(fault="adapters", injected="engines killed at random moments"), random.Random(8)
    num_kills = kill_again_and_again(
        adapted,
        answers,
        row,
        lambda: draw.uniform(0.5, 1.5) * seconds / wanted,
        num_kills=wanted,
        **load_settings(),
    )
    row.note = f"{num_kills} kills, {NUM_ADAPTERS} adapters, {NUM_RESIDENT} of them in each engine's memory"
    assert num_kills == wanted
    judge(report, row, adapted)
    resident = [adapted.metric("rayinfer_adapters_resident", engine=engine) for engine in adapted.engine_names()]
    assert 0 < max(resident) <= NUM_RESIDENT, resident  # an engine that was just started may have none yet


def test_slots_that_are_not_compared_with_adapters_give_wrong_answers(adapted, answers, report):
    """The last of these, as it leaves wrong prefixes in the engines' caches."""
    row = FaultRow(fault="adapters", injected="more adapters than slots")
    with adapted.switched("no-slot-check"), under_load(adapted, answers, row, **load_settings()):
        time.sleep(WITHOUT_S)
    assert row.wrong > 0
    judge(report, row, adapted, "no-slot-check")

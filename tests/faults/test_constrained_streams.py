"""Engines are killed under answers that grammars hold to a form."""

import random
import re
import time

import pytest

from support.faults.fault_load import record_answers, request_body
from support.faults.fault_report import FaultRow
from support.faults.fault_runs import judge, under_load, wait_until_whole
from support.faults.faulty_service import kill
from support.structured.json_formats import schema_errors

NUM_KILLS, NUM_REQUESTS = 50, 12
WORD = "[a-z]{3,9}"
SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9a-f]{12}$"},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["first", "second", "third"]},
    },
    "required": ["id", "size", "kind"],
    "additionalProperties": False,
}
FORMS = [
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"regex": f"{WORD}(-{WORD}){{2,4}}"},
    {"grammar": 'start: "<" (PAIR ";")+ ">"\nPAIR: /[a-d]{2}=[0-9]{1,3}/'},
]
PATTERNS = {1: rf"{WORD}(-{WORD}){{2,4}}", 2: r"<([a-d]{2}=[0-9]{1,3};)+>"}


def is_valid(number, text, reason):
    if reason == "length":
        return True  # which it says
    pattern = PATTERNS.get(number % len(FORMS))
    return reason == "stop" and (not schema_errors(SCHEMA, text) if pattern is None else re.fullmatch(pattern, text))


@pytest.mark.faults
def test_constrained_streams_survive_fifty_kills(pair, model, report):
    bodies = {
        number: request_body(
            number, max_tokens=model.num_tokens, ignore_eos=False, structured_outputs=FORMS[number % len(FORMS)]
        )
        for number in range(NUM_REQUESTS)
    }
    expected = record_answers(pair.url, bodies)
    for number, answer in expected.items():
        assert all(is_valid(number, *choice) for choice in answer.choices.values()), answer.choices
    assert any(reason == "stop" for answer in expected.values() for _, reason in answer.choices.values())
    row, draw = FaultRow(fault="kills", injected="engines killed under constrained streams"), random.Random(24)
    num_kills = 0
    with under_load(pair, expected, row, num_streams=12, whole_per_s=0.0):
        while num_kills < NUM_KILLS:
            time.sleep(draw.uniform(0.3, 2.0))
            alive = pair.known_engines()
            if len(alive) > 1:
                kill(alive[num_kills % len(alive)])
                num_kills += 1
        row.recovery_s = wait_until_whole(pair)
    row.note = f"{num_kills} kills"
    judge(report, row, pair)

"""An engine on a GPU: recorded steps, steps planned ahead and plain ones give the same tokens, also after sleep."""

import pytest

from engine_answers import answers_of, assert_alike
from tiny_architectures import DECODERS

WAYS = [{}, {"sleeps": True}, {"overlap_steps": False}, {"enforce_eager": True}]


@pytest.mark.gpu
@pytest.mark.parametrize("name", DECODERS)
def test_recorded_overlapping_and_plain_steps_answer_alike(name, tmp_path):
    folder = DECODERS[name](tmp_path)
    plain = answers_of(folder, enforce_eager=True, overlap_steps=False)
    for way in WAYS:
        assert_alike(answers_of(folder, **way), plain)

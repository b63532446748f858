"""Engines over processes for every architecture: what one rank answers; a few always, all with `make test-models`."""

import pytest

from rayinfer.engine.build import build_engine
from support.golden.encoder_decoder_runs import make_tiny_t5
from support.golden.engine_answers import answers_of, assert_alike
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS

MAKERS = DECODERS | ENCODER_DECODERS
SIZES = [(2, 1), (1, 2), (2, 2)]  # tensor ranks and stages
ALWAYS = {("qwen3-moe", (2, 1)), ("marian", (1, 2))}
CASES = [
    pytest.param(name, size, marks=() if (name, size) in ALWAYS else pytest.mark.models, id=f"{name}, {size}")
    for name in MAKERS
    for size in SIZES
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp("model")) for name, make in MAKERS.items()}


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("name", "size"), CASES)
def test_ranks_answer_like_one_also_after_sleep(name, size, folders):
    tensor, pipeline = size
    sizes = {"tensor_parallel_size": tensor, "pipeline_parallel_size": pipeline}
    got = answers_of(folders[name], sleeps=True, build=build_engine, **sizes)
    assert_alike(got, answers_of(folders[name]))


@pytest.mark.models
@pytest.mark.usefixtures("one_thread")
def test_what_the_last_of_three_stages_has_read_comes_to_all_of_them(tmp_path):
    folder = make_tiny_t5(tmp_path, num_decoder_layers=4)  # and two of the encoder, none in the last stage
    assert_alike(answers_of(folder, build=build_engine, pipeline_parallel_size=3), answers_of(folder))

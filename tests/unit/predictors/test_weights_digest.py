import shutil

import pytest

from rayinfer.config import engine_config
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.predictors.weights_digest import weights_digest
from rayinfer.routing.engine_set import EngineSet
from support.fakes.fake_engine_client import FakeEngineClient
from support.fakes.held_predictor import HeldPredictor
from support.tiny_models.tiny_encoders import make_tiny_encoder


@pytest.fixture
def folder(tmp_path):
    make_tiny_encoder(tmp_path / "model", "Bert", "Model")
    return tmp_path / "model"


def digest(folder, **settings):
    return weights_digest(engine_config(model=str(folder), **settings), folder)


def test_a_digest_is_that_of_the_weights_and_the_settings_of_numbers(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "copy")
    assert digest(folder) == digest(tmp_path / "copy") == digest(folder, max_num_seqs=3)
    assert digest(folder) != digest(folder, dtype="bfloat16")


def test_one_changed_byte_of_the_weights_changes_the_digest(folder):
    before, weights = digest(folder), folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    assert digest(folder) != before


async def test_the_digest_is_unknown_while_engines_differ():
    engines = EngineSet("tiny", ServiceMetrics(), router_id="r", on_trace=lambda name, events: None)
    seen = []
    for number, weights in enumerate(("old", "old", "new")):
        predictor = HeldPredictor()
        predictor.digest = weights
        engines.add(f"engine-{number}", FakeEngineClient(), predictor.describe())
        seen.append(engines.describe().predictor.digest)
    assert seen == ["old", "old", ""]
    for number in range(2):
        engines.remove(f"engine-{number}", "it is replaced")
    assert engines.describe().predictor.digest == "new"
    await engines.close()

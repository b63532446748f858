"""Vision halves in plans: weights, tokens and memory, beside those of the loaded models."""

import json
import shutil
from dataclasses import replace

import pytest
import torch

import rayinfer_kernels
from rayinfer.errors import ConfigError
from rayinfer.images.headers import ImageSize
from rayinfer.images.prompts import PROCESSOR_FILES, ImagePrompts
from rayinfer.models.vision.image_model import load_image_model
from rayinfer.planning.capacity_plan import Objectives, make_plan
from rayinfer.planning.hardware import find_card
from rayinfer.planning.model_footprint import footprint_of
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_qwen_vision import make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import make_tiny_vision_model

SIZE = ImageSize(60, 40)


@pytest.fixture(scope="module", params=[make_tiny_vision_model, make_tiny_qwen_vision_model], ids=["tiles", "patches"])
def folder(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("vision"))


def test_weights_and_tokens_are_those_of_the_loaded_model(folder):
    images = footprint_of(str(folder), dtype="float32", image_size=SIZE).images
    prompts = ImagePrompts.from_folder(folder)
    rayinfer_kernels.configure(None)  # an engine may have left its own, and packed weights are no parameters
    model = load_image_model(folder, prompts, 64, torch.float32, torch.device("cpu"))
    assert images.weight_bytes == 4 * sum(parameter.numel() for parameter in model.parameters())
    assert images.tokens_per_image == prompts.num_tokens(SIZE) > 0
    assert not images.assumes_processor
    assert images.activation_bytes > 0
    smaller = footprint_of(str(folder), dtype="float32", image_size=ImageSize(60, 10)).images
    assert smaller.operations_per_image < images.operations_per_image
    assert smaller.activation_bytes == images.activation_bytes


def test_a_vision_half_takes_memory_of_the_cache_and_images_take_tokens(folder):
    model = footprint_of(str(folder), image_size=SIZE)
    card = find_card("small", 4, 1000, 100)
    objectives = Objectives(rate=1, ttft_s=1, itl_s=0.05, prompt_len=100, output_len=50, num_images=2)
    plan = make_plan(model, card, objectives)
    without = make_plan(replace(model, images=None), card, objectives)
    taken = model.images.weight_bytes + model.images.activation_bytes
    assert without.kv_tokens - plan.kv_tokens == pytest.approx(0.9 * taken / model.kv_bytes_per_token, rel=0.2, abs=2)
    memory, times, _ = plan.tables()
    values = {row[0]: row[1] for row in memory.rows}
    assert values["tokens of images, a request"] == str(2 * model.images.tokens_per_image)
    assert "encoding of an image" in {row[0] for row in times.rows}
    assert "encoding of an image" not in {row[0] for row in without.tables()[1].rows}
    assert plan.as_json()["model"]["images"]["tokens_per_image"] == model.images.tokens_per_image


def test_a_config_alone_is_planned_with_the_defaults_of_its_processor(folder, tmp_path):
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    for name in PROCESSOR_FILES:
        (tmp_path / name).unlink(missing_ok=True)
    images = footprint_of(str(tmp_path)).images
    assert images.assumes_processor
    assert images.tokens_per_image > 0


def test_models_of_texts_have_no_vision_half_and_odd_sizes_are_refused(folder, tmp_path):
    assert footprint_of(str(make_tiny_llama(tmp_path / "text"))).images is None
    if "qwen" in json.loads((folder / "config.json").read_text())["model_type"]:
        with pytest.raises(ConfigError, match="200 times as long"):
            footprint_of(str(folder), image_size=ImageSize(10_000, 10))

import dataclasses

import pytest
from transformers import Qwen2Config

from rayinfer.models.model_config import ModelConfig
from rayinfer.models.sliding_windows import same_window_everywhere, windows_by_layer

CONFIG = ModelConfig(
    architecture="",
    vocab_size=16,
    hidden_size=8,
    intermediate_size=8,
    num_layers=3,
    num_heads=1,
    num_kv_heads=1,
    head_dim=8,
    max_position_embeddings=32,
)


def config(**raw):
    return dataclasses.replace(CONFIG, raw=raw)


@pytest.mark.parametrize(
    ("raw", "window"), [({"sliding_window": 7}, 7), ({"sliding_window": None}, None), ({}, 4096)], ids=str
)
def test_null_means_no_window_and_silence_the_default(raw, window):
    assert same_window_everywhere(config(**raw), default=4096) == [window] * 3


@pytest.mark.parametrize("num_layers", [2, 30])
@pytest.mark.parametrize(
    "raw",
    [
        {"sliding_window": 7},
        {"use_sliding_window": True},
        {"use_sliding_window": True, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0},
        {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 0},
    ],
    ids=str,
)
def test_layers_have_the_windows_that_transformers_gives_them(raw, num_layers):
    theirs = Qwen2Config(num_hidden_layers=num_layers, **raw)
    wanted = [theirs.sliding_window if kind == "sliding_attention" else None for kind in theirs.layer_types]
    assert windows_by_layer(dataclasses.replace(config(**raw), num_layers=num_layers)) == wanted

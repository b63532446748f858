import copy
import json

import pytest
import torch
from transformers import Phi3Config

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.architectures.phi3 import Phi3ForCausalLM
from rayinfer.models.model_config import read_model_config
from support.golden.decoder_runs import CLOSE, PROMPT, DecoderRun, assert_decodes_like_transformers, transformers_logits
from support.tiny_models.tiny_checkpoints import make_tiny_model

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "original_max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6, 1.9, 2.3, 2.6, 3.0],
    "long_factor": [1.0, 1.5, 2.5, 4.0, 7.0, 11.0, 17.0, 23.0],
}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.75}
VARIATIONS = {
    "grouped queries": {},
    "odd groups": {"hidden_size": 72, "num_attention_heads": 9, "num_key_value_heads": 3},
    "window": {"sliding_window": 20},
    "part of each head turns": {"rope_parameters": PARTIAL},
    "longrope within the original context": {"rope_parameters": LONGROPE},
    "longrope and window on part of each head": {
        "rope_parameters": LONGROPE | {key: LONGROPE[key][:6] for key in ("short_factor", "long_factor")} | PARTIAL
        | {"rope_type": "longrope"},
        "sliding_window": 20,
    },
}  # fmt: skip


@pytest.mark.parametrize("variation", VARIATIONS)
def test_a_phi3_decodes_like_transformers(variation, tmp_path):
    settings = copy.deepcopy(SHAPE | VARIATIONS[variation])  # transformers changes what it is given
    assert_decodes_like_transformers(make_tiny_model(tmp_path, Phi3Config(**settings)))


@pytest.mark.parametrize("original", [30, 59])
def test_beyond_the_original_context_the_long_factors_count(original, tmp_path):
    config = Phi3Config(**SHAPE | {"original_max_position_embeddings": original}, rope_parameters=dict(LONGROPE))
    assert_decodes_like_transformers(make_tiny_model(tmp_path, config))


def test_the_longest_sequence_decides_between_the_factors_for_all_sequences(tmp_path):
    config = Phi3Config(**SHAPE | {"original_max_position_embeddings": 40}, rope_parameters=dict(LONGROPE))
    folder = make_tiny_model(tmp_path, config)
    short, long = PROMPT[:30], PROMPT
    short_logits, long_logits = transformers_logits(folder, short), transformers_logits(folder, long)
    for_short, for_long = DecoderRun(folder, longest_sequence=40), DecoderRun(folder, longest_sequence=41)
    torch.testing.assert_close(for_short.feed((0, short))[0], short_logits, **CLOSE)
    torch.testing.assert_close(for_long.feed((0, long), (1, short))[0], long_logits, **CLOSE)
    # In an engine that allows long sequences a short one turns by the long factors, too: as a start of a long one.
    (got,) = for_long.feed((2, short))
    torch.testing.assert_close(got, long_logits[:30], **CLOSE)
    assert (got - short_logits).abs().max() > 0.01


@pytest.mark.parametrize("old_type", ["su", "yarn", "longrope"])
def test_the_first_checkpoints_called_longrope_otherwise(old_type, tmp_path):
    config = Phi3Config(**SHAPE | {"original_max_position_embeddings": 40}, rope_parameters=dict(LONGROPE))
    folder = make_tiny_model(tmp_path, config)
    wanted = transformers_logits(folder, PROMPT)
    raw = json.loads((folder / "config.json").read_text())
    rope = raw.pop("rope_parameters")
    raw |= {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": old_type}}
    raw["rope_scaling"] |= {name: rope[name] for name in ("short_factor", "long_factor")}
    (folder / "config.json").write_text(json.dumps(raw))
    (got,) = DecoderRun(folder).feed((0, PROMPT))
    torch.testing.assert_close(got, wanted, **CLOSE)


def test_the_original_context_is_4096_tokens_unless_the_config_names_another(tmp_path):
    folder = make_tiny_model(tmp_path, Phi3Config(**SHAPE, rope_parameters=dict(LONGROPE)))
    raw = json.loads((folder / "config.json").read_text())
    del raw["original_max_position_embeddings"]
    (folder / "config.json").write_text(json.dumps(raw))
    short, long = DecoderRun(folder, longest_sequence=4096), DecoderRun(folder, longest_sequence=4097)
    wanted = transformers_logits(folder, PROMPT)
    torch.testing.assert_close(short.feed((0, PROMPT))[0], wanted, **CLOSE)
    assert (long.feed((0, PROMPT))[0] - wanted).abs().max() > 0.01


def test_a_rotation_that_transformers_does_not_know_for_it_is_refused(tmp_path):
    folder = make_tiny_model(tmp_path, Phi3Config(**SHAPE))
    raw = json.loads((folder / "config.json").read_text())
    raw["rope_parameters"] = {"rope_type": "linear", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps(raw))
    with pytest.raises(UnsupportedArchitecture, match=r"'linear'.*default, longrope"):
        Phi3ForCausalLM(read_model_config(folder))

from pathlib import Path

import pytest
import torch

import rayinfer.models
from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.known_architectures import KNOWN_ARCHITECTURES
from rayinfer.models.architectures.llama import LlamaForCausalLM
from rayinfer.models.architectures.registry import ARCHITECTURES, build_decoder
from rayinfer.models.model_config import ModelConfig


def config(architecture):
    return ModelConfig(
        architecture=architecture,
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        max_position_embeddings=32,
        rope={"rope_type": "default"},
    )


def test_an_architecture_becomes_its_class():
    with torch.device("meta"):
        assert isinstance(build_decoder(config("LlamaForCausalLM")), LlamaForCausalLM)


def test_every_architecture_that_is_known_by_name_has_its_class():
    assert sorted(KNOWN_ARCHITECTURES) == sorted(ARCHITECTURES)


def test_an_unknown_architecture_is_refused_with_a_list_of_the_known():
    with pytest.raises(UnsupportedArchitecture, match="'MambaForCausalLM'") as caught:
        build_decoder(config("MambaForCausalLM"))
    assert isinstance(caught.value, ModelLoadError)
    assert all(name in str(caught.value) for name in ARCHITECTURES)


def test_the_error_leads_to_a_worked_example_that_is_up_to_date():
    with pytest.raises(UnsupportedArchitecture, match=r"rayinfer/models/README\.md says how to add one"):
        build_decoder(config("MambaForCausalLM"))
    models = Path(rayinfer.models.__file__).parent
    assert (models / "architectures" / "qwen3.py").read_text() in (models / "README.md").read_text()

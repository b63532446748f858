from pathlib import Path

import pytest

import rayinfer.models
from rayinfer.errors import ModelLoadError, UnsupportedArchitecture
from rayinfer.models.architectures.registry import ARCHITECTURES, architecture_class, check_architecture
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.encoder_decoder import EncoderDecoder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_architecture_has_a_class_that_builds_decoders(name):
    assert issubclass(architecture_class(name), CausalDecoder | EncoderDecoder)


def test_an_unknown_architecture_is_refused_with_a_list_of_the_known():
    with pytest.raises(UnsupportedArchitecture, match="'MambaForCausalLM'") as caught:
        check_architecture("MambaForCausalLM")
    assert isinstance(caught.value, ModelLoadError)
    assert all(name in str(caught.value) for name in ARCHITECTURES)


def test_the_error_leads_to_a_worked_example_that_is_up_to_date():
    with pytest.raises(UnsupportedArchitecture, match=r"rayinfer/models/README\.md explains how to add one"):
        check_architecture("MambaForCausalLM")
    models = Path(rayinfer.models.__file__).parent
    assert (models / "architectures" / "qwen3.py").read_text() in (models / "README.md").read_text()

"""Layers of every family as one operation, beside transformers and beside the layers one by one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rayinfer_kernels
from rayinfer.models.encoders.encoder import TextBatch
from rayinfer.models.encoders.encoder_loading import load_encoder
from rayinfer.models.encoders.encoder_stack import run_layers, stack_layers
from support.tiny_models.tiny_encoders import VOCAB_SIZE, make_tiny_encoder

CPU = torch.device("cpu")
LENGTHS = [1, 5, 17, 30, 62]
STACKED = ["Bert", "DistilBert", "MPNet", "Roberta", "XLMRoberta"]


@pytest.fixture(autouse=True)
def kernels(kernel_folder: Path) -> Iterator[None]:
    rayinfer_kernels.configure(kernel_folder)
    yield
    rayinfer_kernels.configure(None)


@pytest.fixture
def batch() -> TextBatch:
    token_ids = torch.randint(4, VOCAB_SIZE, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    positions = torch.cat([torch.arange(length) for length in LENGTHS])
    return TextBatch(token_ids, torch.zeros_like(token_ids), positions, LENGTHS)


@pytest.mark.parametrize("family", STACKED)
def test_hidden_states_are_those_of_transformers(family, batch, tmp_path):
    model = make_tiny_encoder(tmp_path, family, "Model")
    encoder = load_encoder(tmp_path, torch.float32, CPU)
    stack = stack_layers(encoder)
    assert stack is not None
    encoder.use_stack(stack)
    with torch.inference_mode():
        hidden = encoder.forward(batch)
        expected = [model(ids[None]).last_hidden_state[0] for ids in batch.token_ids.split(LENGTHS)]
    torch.testing.assert_close(hidden, torch.cat(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("activation", ["gelu_new", "relu", "silu"])
def test_every_activation_is_that_of_transformers(activation, batch, tmp_path):
    model = make_tiny_encoder(tmp_path, "Bert", "Model", hidden_act=activation)
    encoder = load_encoder(tmp_path, torch.float32, CPU)
    encoder.use_stack(stack_layers(encoder))
    with torch.inference_mode():
        expected = [model(ids[None]).last_hidden_state[0] for ids in batch.token_ids.split(LENGTHS)]
        torch.testing.assert_close(encoder.forward(batch), torch.cat(expected), atol=1e-4, rtol=0)


@pytest.mark.parametrize("quantization", [None, "int8", "int8-dynamic"])
def test_bfloat16_is_close_to_the_layers_one_by_one(quantization, batch, tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model")
    encoder = load_encoder(tmp_path, torch.bfloat16, CPU, quantization=quantization)
    with torch.inference_mode():
        one_by_one = encoder.forward(batch).float()
        encoder.use_stack(stack_layers(encoder))
        together = encoder.forward(batch)
    assert together.dtype == torch.bfloat16
    assert (together.float() - one_by_one).abs().mean() < 0.05
    assert one_by_one.abs().mean() > 0.5


@pytest.mark.parametrize("family", ["ModernBert", "NomicBert"])
def test_layers_of_another_form_run_one_by_one(family, tmp_path):
    make_tiny_encoder(tmp_path, family, "Model")
    assert stack_layers(load_encoder(tmp_path, torch.float32, CPU)) is None


def test_fewer_layers_are_the_first(tmp_path):
    make_tiny_encoder(tmp_path, "Bert", "Model", num_hidden_layers=3)
    encoder = load_encoder(tmp_path, torch.float32, CPU)
    x = torch.randn(sum(LENGTHS), 48)
    first = stack_layers(encoder, 2)
    assert first is not None
    with torch.inference_mode():
        torch.testing.assert_close(first.run(x, LENGTHS), run_layers(encoder, 2, x, LENGTHS), atol=1e-4, rtol=0)

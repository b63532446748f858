"""A LoRA adapter that is trained on one text, by plain torch, until the model continues that text by heart."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM

from support.tiny_models.tiny_adapters import LINEAR, linear_layers, save_adapter

RANK, ALPHA = 8, 16.0
MOST_STEPS, MARGIN = 500, 1.0  # in logits, of each token of the text to any other
LEARNING_RATE = 0.02


def train_adapter(folder: Path, model_folder: Path, token_ids: Sequence[int]) -> Path:
    """Train an adapter of all linear layers; asserts that each token is the likeliest by a margin in the end."""
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32).requires_grad_(False)
    generator, tensors = torch.Generator().manual_seed(0), {}
    for layer, (num_outputs, num_inputs) in linear_layers(model_folder).items():
        a = torch.randn(RANK, num_inputs, generator=generator) * num_inputs**-0.5
        pair = a.requires_grad_(), torch.zeros(num_outputs, RANK, requires_grad=True)
        model.get_submodule(layer).register_forward_hook(partial(_add_term, pair))
        tensors |= {f"base_model.model.{layer}.lora_{kind}.weight": each for kind, each in zip("AB", pair, strict=True)}
    optimizer, text = torch.optim.Adam(tensors.values(), lr=LEARNING_RATE), torch.tensor([list(token_ids)])
    for _ in range(MOST_STEPS):
        logits, wanted = model(text).logits[0, :-1], text[0, 1:]
        if (margin := _least_margin(logits.detach(), wanted)) > MARGIN:
            break
        optimizer.zero_grad()
        F.cross_entropy(logits, wanted).backward()
        optimizer.step()
    assert margin > MARGIN, f"the least margin is {margin:.3f} after {MOST_STEPS} steps"
    trained = {name: tensor.detach() for name, tensor in tensors.items()}
    return save_adapter(folder, trained, r=RANK, lora_alpha=ALPHA, target_modules=LINEAR)


def _least_margin(logits: torch.Tensor, wanted: torch.Tensor) -> float:
    own = logits.gather(1, wanted[:, None])
    others = logits.scatter(1, wanted[:, None], -torch.inf)
    return float((own - others.amax(1, keepdim=True)).min())


def _add_term(
    pair: tuple[torch.Tensor, torch.Tensor], module: torch.nn.Module, inputs: tuple[torch.Tensor], out: torch.Tensor
) -> torch.Tensor:
    a, b = pair
    return out + inputs[0] @ a.T @ b.T * (ALPHA / RANK)

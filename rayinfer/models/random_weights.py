"""Fills a decoder with random numbers: as fast as its checkpoint would be, and nothing has to be read."""

from pathlib import Path

import torch

from rayinfer.models.decoder import Decoder
from rayinfer.models.loader import empty_decoder
from rayinfer.models.sharding import shard_decoder
from rayinfer.tensor_parallel import UNSHARDED, Shard

SPREAD = 0.02  # what most models begin their training with


def random_decoder(folder: Path, dtype: torch.dtype, device: torch.device, shard: Shard = UNSHARDED) -> Decoder:
    """Build the decoder of a config.json, or one rank's shard, straight on the device; norms do nothing, biases too."""
    decoder = empty_decoder(folder)
    assert isinstance(decoder, torch.nn.Module)
    shard_decoder(decoder, shard)
    decoder.to(dtype).to_empty(device=device)
    fill_randomly(decoder, device)
    return decoder


def fill_randomly(model: torch.nn.Module, device: torch.device) -> None:
    """Fill a model's parameters on the device with random numbers, always the same; norms do nothing, biases too."""
    generator = torch.Generator(device).manual_seed(0)
    with torch.inference_mode():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=SPREAD, generator=generator)
            else:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)

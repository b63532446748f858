"""Calibration text that a model writes itself, as its training data are not at hand (LLM-QAT, 2023)."""

from collections.abc import Callable

import torch

from rayinfer.models.decoder import Decoder
from rayinfer.optimization.sequence_batches import SequenceBatches

SEED = 2023


@torch.inference_mode()
def sample_sequences(
    decoder: Decoder,
    dtype: torch.dtype,
    num_sequences: int,
    length: int,
    on_token: Callable[[], None] = lambda: None,
) -> torch.Tensor:
    """Draw token ids [num_sequences, length] at temperature 1 from a decoder that is ready to run.

    As in Liu et al. 2023. Sequences begin with the token that begins texts; where the model
    has none, each begins with any token. Raises ValueError when the model's scores are no numbers.
    """
    generator = torch.Generator().manual_seed(SEED)
    batches = SequenceBatches(decoder, dtype, num_sequences, length)
    token_ids = torch.empty(num_sequences, length, dtype=torch.int64)
    token_ids[:, 0] = _first_tokens(decoder, num_sequences, generator)
    for position in range(length - 1):
        hidden = decoder.forward(token_ids[:, position].to(torch.int32), batches.step(position, 1))
        probabilities = decoder.logits(hidden).float().softmax(-1)
        if not probabilities.isfinite().all():
            raise ValueError(f"its scores behind token {position + 1} are no numbers")
        token_ids[:, position + 1] = torch.multinomial(probabilities, 1, generator=generator)[:, 0]
        on_token()
    return token_ids


def _first_tokens(decoder: Decoder, num_sequences: int, generator: torch.Generator) -> torch.Tensor:
    first = decoder.config.raw.get("bos_token_id")
    if isinstance(first, int):
        return torch.full((num_sequences,), first)
    return torch.randint(decoder.config.vocab_size, (num_sequences,), generator=generator)

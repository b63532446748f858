"""The embedded model with the blocks of its own GGUF file, beside its dequantized form."""

import pytest
import torch

import rayinfer_kernels
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.gguf.kept_blocks import folder_with_blocks
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_model import stored_model
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer.optimization.sequence_batches import SequenceBatches
from rayinfer.tokenization.tokenizer import Tokenizer
from support.golden.golden_prompts import GOLDEN_PROMPTS

pytestmark = pytest.mark.models

CPU = torch.device("cpu")
NUM_SEQUENCES, LENGTH = 2, 250


@pytest.fixture
def compiled_kernels(kernel_folder):
    rayinfer_kernels.configure(kernel_folder)
    yield
    rayinfer_kernels.configure(None)


@torch.inference_mode()
def top_tokens(decoder, token_ids):
    decoder.prepare(torch.bfloat16, CPU, LENGTH)
    batch = SequenceBatches(decoder, torch.bfloat16, NUM_SEQUENCES, LENGTH).step(0, LENGTH)
    return decoder.logits(decoder.forward(token_ids, batch)).argmax(-1)


@pytest.mark.usefixtures("compiled_kernels")
def test_kept_blocks_choose_the_tokens_of_the_dequantized_model_in_less_memory(tmp_path):
    folder = resolve_model("smollm2-135m")
    text = "\n\n".join(prompt.text for prompt in GOLDEN_PROMPTS)
    token_ids = torch.tensor(Tokenizer.from_folder(folder).encode(text)[: NUM_SEQUENCES * LENGTH], dtype=torch.int32)
    assert len(token_ids) == NUM_SEQUENCES * LENGTH
    tokens, sizes = [], []
    for each in (folder, folder_with_blocks(folder)):
        decoder = load_packed_decoder(each, torch.bfloat16, CPU, quantization=None, cache=PackedCache(tmp_path))
        tokens.append(top_tokens(decoder, token_ids))
        sizes.append(stored_model(decoder).num_bytes)
    assert int((tokens[0] == tokens[1]).sum()) >= 498
    assert sizes[1] < 0.5 * sizes[0]

"""Language models behind embeddings of images, in eight bits."""

import pytest
import torch

from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from support.golden.decoder_runs import CPU, PROMPT, DecoderRun
from support.tiny_models.tiny_qwen_vision import make_tiny_qwen_vision_model
from support.tiny_models.tiny_vision import make_tiny_vision_model

LEAST, MOST = 0.01, 0.08  # distance of logits from float32's, by their root mean square, as of other architectures


@pytest.mark.parametrize(
    ("make", "family"),
    [
        *((make_tiny_vision_model, family) for family in ("idefics3", "smolvlm")),
        *((make_tiny_qwen_vision_model, family) for family in ("qwen2_5_vl", "qwen2_vl")),
    ],
)
def test_int8_dynamic_stays_near_float32(make, family, tmp_path, compiled_kernels):
    folder = make(tmp_path, family=family)
    images = 4 * torch.randn(len(PROMPT), 64, generator=torch.Generator().manual_seed(3))

    def load(path, dtype):
        cache = PackedCache(tmp_path / "packed")
        return load_packed_decoder(path, dtype, CPU, quantization="int8-dynamic", cache=cache, worth_keeping_bytes=0)

    (wanted,), (got,) = (
        DecoderRun(folder, load=loader).feed((0, PROMPT), hidden=images.clone()) for loader in (None, load)
    )
    assert LEAST < ((got - wanted).square().mean() / wanted.square().mean()).sqrt() < MOST

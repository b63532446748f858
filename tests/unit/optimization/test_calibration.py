import pytest
import torch
from transformers import GPT2Config, Phi3Config

from rayinfer.layers.matrix import Matrix
from rayinfer.models.loader import load_decoder
from rayinfer.optimization.calibration import calibrate
from rayinfer.optimization.quantization import matrix_formats
from rayinfer.optimization.sequence_batches import SequenceBatches
from rayinfer_kernels import ops
from support.tiny_models.tiny_checkpoints import make_tiny_llama, make_tiny_model

CPU = torch.device("cpu")
MODELS = {
    "llama": lambda folder: make_tiny_llama(folder, attention_bias=True, mlp_bias=True),
    "gpt2": lambda folder: make_tiny_model(
        folder, GPT2Config(vocab_size=96, n_embd=48, n_head=4, n_layer=2, n_positions=128)
    ),
    "phi3": lambda folder: make_tiny_model(
        folder,
        Phi3Config(
            vocab_size=96, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
            intermediate_size=80, pad_token_id=0, max_position_embeddings=128, original_max_position_embeddings=128,
        ),
    ),
}  # fmt: skip


def tokens(num_sequences, seed):
    return torch.randint(96, (num_sequences, 32), generator=torch.Generator().manual_seed(seed))


def layer_matrices(decoder):
    formats = matrix_formats(decoder, "int4")
    return [name for name, format in formats.items() if format is ops.WeightFormat.INT4_DYNAMIC]


@torch.inference_mode()
def hidden_states(folder, quantized, token_ids):
    decoder = load_decoder(folder, torch.float32, CPU)
    for name, weight in quantized.items():
        matrix = decoder.get_submodule(name)
        assert isinstance(matrix, Matrix)
        matrix.use_packed(ops.pack_quantized(weight, is_gated=matrix.is_gated))
    decoder.prepare(torch.float32, CPU, 32)
    batch = SequenceBatches(decoder, torch.float32, len(token_ids), 32).step(0, 32)
    return decoder.forward(token_ids.to(torch.int32).flatten(), batch)


@pytest.mark.parametrize("name", MODELS)
def test_a_calibrated_model_stays_nearer_to_the_original_than_a_rounded_one(name, tmp_path):
    folder = MODELS[name](tmp_path)
    decoder = load_decoder(folder, torch.float32, CPU)
    names = layer_matrices(decoder)
    assert len(names) == 8
    rounded = {each: ops.quantize(decoder.get_submodule(each).weight, ops.WeightFormat.INT4_DYNAMIC) for each in names}
    done = []
    calibrated = calibrate(decoder, names, tokens(64, seed=1), lambda: done.append(1))
    assert len(done) == 8
    unseen = tokens(8, seed=2)
    wanted = hidden_states(folder, {}, unseen)
    errors = [
        (hidden_states(folder, weights, unseen) - wanted).square().mean().item() for weights in (calibrated, rounded)
    ]
    assert errors[0] < 0.7 * errors[1]


def test_of_an_embedding_and_a_head_only_rounding_is_asked(tmp_path):
    decoder = load_decoder(make_tiny_llama(tmp_path, tie=False), torch.float32, CPU)
    formats = matrix_formats(decoder, "int4")
    assert formats["model.embed_tokens"] is formats["lm_head"] is ops.WeightFormat.INT8_DYNAMIC
    assert set(matrix_formats(decoder, "int8").values()) == {ops.WeightFormat.INT8}
    assert set(matrix_formats(decoder, "int8-dynamic").values()) == {ops.WeightFormat.INT8_DYNAMIC}

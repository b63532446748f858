import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rayinfer.models.checkpoints.safetensors_writer import TensorSpec, round_to_bfloat16, write_safetensors

TORCH_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def bits_by_torch(values: np.ndarray) -> np.ndarray:
    return torch.from_numpy(values).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def test_bfloat16_is_rounded_as_torch_rounds_it():
    bits = np.random.default_rng(0).integers(0, 1 << 32, size=100_000, dtype=np.uint32)
    halfway = (np.arange(1 << 12, dtype=np.uint32) << 20) | 0x8000  # exactly between two bfloat16 numbers
    values = np.concatenate([bits, halfway, halfway + 1, halfway - 1]).astype(np.uint32).view(np.float32)
    numbers = values[~np.isnan(values)]
    assert np.array_equal(round_to_bfloat16(numbers), bits_by_torch(numbers))


def test_nan_and_the_infinities_stay_what_they_are():
    values = np.array([0x7F800001, 0xFFC00000, 0x7F800000, 0xFF800000], dtype=np.uint32).view(np.float32)
    rounded = (round_to_bfloat16(values).astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(rounded[:2]).all()
    assert rounded[2:].tolist() == [float("inf"), float("-inf")]


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_other_readers_read_what_was_written(tmp_path, dtype):
    arrays = [np.random.default_rng(seed).standard_normal((3, 5 + seed), dtype=np.float32) for seed in range(3)]
    specs = [TensorSpec(name=f"tensor.{index}", shape=array.shape) for index, array in enumerate(arrays)]
    write_safetensors(tmp_path / "model.safetensors", dtype, specs, arrays)
    read = load_file(tmp_path / "model.safetensors")
    assert list(read) == [spec.name for spec in specs]
    for spec, array in zip(specs, arrays, strict=True):
        assert torch.equal(read[spec.name], torch.from_numpy(array).to(TORCH_DTYPES[dtype]))


def test_a_tensor_of_another_shape_than_announced_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'weight' has shape"):
        write_safetensors(
            tmp_path / "model.safetensors",
            "F32",
            [TensorSpec(name="weight", shape=(2, 2))],
            [np.zeros((4,), dtype=np.float32)],
        )

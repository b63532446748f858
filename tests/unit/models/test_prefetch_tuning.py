import json
from pathlib import Path

import pytest
import torch

import rayinfer_kernels
from rayinfer.layers.linear import Linear
from rayinfer.models.prefetch_tuning import DISTANCES, LEAST_BYTES, tune_prefetch
from rayinfer_kernels import ops

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernels(compiled_kernels):
    pass


def model(num_bytes: int, dtype: torch.dtype = torch.bfloat16) -> torch.nn.Module:
    """Two packed layers of a format; how they are filled is of no interest."""
    width = 1024
    layers = torch.nn.ModuleList(
        Linear(width, num_bytes // (2 * width * dtype.itemsize), is_gated=is_gated) for is_gated in (False, True)
    )
    layers.to(dtype)
    for layer in layers:
        assert isinstance(layer, Linear)
        layer.weight.fill_(0.01)
        layer.pack()
    return layers


def distances(layers: torch.nn.Module) -> set[ops.PrefetchDistances]:
    return {layer.packed.prefetch for layer in layers.modules() if isinstance(layer, Linear) and layer.packed}


def test_all_weights_get_the_distances_that_took_least_time_and_later_models_the_same(tmp_path):
    first, second = model(LEAST_BYTES), model(LEAST_BYTES)
    tune_prefetch(first, torch.bfloat16, CPU, tmp_path)
    (chosen,) = distances(first)
    assert set(chosen) <= {0, *DISTANCES}
    (record,) = tmp_path.glob("*.json")
    measured = json.loads(record.read_text())
    assert sorted(measured.values()) == sorted(chosen)
    other = next(distance for distance in DISTANCES if distance not in chosen)
    record.write_text(json.dumps(dict.fromkeys(measured, other)))
    tune_prefetch(second, torch.bfloat16, CPU, tmp_path)
    assert distances(second) == {(other, other)}, "what was measured before is used"


def test_what_was_measured_for_one_type_of_rows_is_not_used_for_another(tmp_path):
    tune_prefetch(model(LEAST_BYTES), torch.bfloat16, CPU, tmp_path)
    (record,) = tmp_path.glob("*.json")
    layers = model(LEAST_BYTES, torch.float32)
    tune_prefetch(layers, torch.float32, CPU, tmp_path)
    names = [name.split()[0] for name in json.loads(record.read_text())]
    assert sorted(names) == ["bfloat16"] * 2 + ["float32"] * 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": "b"}', "[" * 200_000])
def test_a_file_that_cannot_be_read_is_measured_for_again(tmp_path, content):
    layers = model(LEAST_BYTES)
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path)
    (record,) = tmp_path.glob("*.json")
    record.write_text(content)
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path)
    assert len([value for value in json.loads(record.read_text()).values() if value in (0, *DISTANCES)]) == 2


@pytest.mark.parametrize("value", ["-64", "1e30", "9" * 400, "NaN", "-Infinity", "0.5", "640"])
def test_a_distance_that_none_was_measured_with_is_the_default(tmp_path, value):
    layers = model(LEAST_BYTES)
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path)
    (record,) = tmp_path.glob("*.json")
    names = list(json.loads(record.read_text()))
    record.write_text("{" + ", ".join(f'"{name}": {value}' for name in names) + "}")
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path)
    (chosen,) = distances(layers)
    assert set(chosen) <= {0, *DISTANCES}


def test_weights_that_a_cache_may_hold_keep_the_default(tmp_path):
    layers = model(LEAST_BYTES // 2)
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path)
    assert distances(layers) == {(0, 0)}
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_costs_later_processes_the_measurement_only(tmp_path: Path):
    (tmp_path / "file").touch()
    layers = model(LEAST_BYTES)
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path / "file" / "folder")
    (chosen,) = distances(layers)
    assert set(chosen) <= {0, *DISTANCES}


def test_a_record_that_cannot_be_replaced_leaves_no_file_behind(tmp_path: Path):
    tune_prefetch(model(LEAST_BYTES), torch.bfloat16, CPU, tmp_path)
    (record,) = tmp_path.glob("*.json")
    record.unlink()
    record.mkdir()
    tune_prefetch(model(LEAST_BYTES), torch.bfloat16, CPU, tmp_path)
    assert list(tmp_path.glob("*.json*")) == [record] == [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_without_kernels_nothing_is_measured(tmp_path):
    layers = model(LEAST_BYTES)
    rayinfer_kernels.configure(None)
    tune_prefetch(layers, torch.bfloat16, CPU, tmp_path)
    assert distances(layers) == {(0, 0)}
    with pytest.raises(RuntimeError, match="no CPU kernels are configured: switched off"):
        rayinfer_kernels.time_products([layer.packed for layer in layers if layer.packed], 1, torch.bfloat16)


def test_products_of_what_the_kernels_do_not_have_are_refused():
    (first, _) = [layer.packed for layer in model(1 << 20) if layer.packed]
    with pytest.raises(ValueError, match=r"rows are torch\.float32, and the weight is torch\.bfloat16"):
        rayinfer_kernels.time_products([first], 1, torch.float32)
    with pytest.raises(ValueError, match=r"2\^31"):
        first.prefetch = ops.PrefetchDistances(1 << 31, 0)
    first.move(lambda tensor: tensor.to("meta"))
    with pytest.raises(ValueError, match="weights on meta"):
        rayinfer_kernels.time_products([first], 1, torch.bfloat16)


def test_products_one_after_the_other_take_longer_the_more_there_are():
    weights = [layer.packed for layer in model(LEAST_BYTES) if layer.packed]
    times = [
        min(rayinfer_kernels.time_products(weights * count, 1, torch.bfloat16) for _ in range(5)) for count in (1, 8)
    ]
    assert times[1] > 2 * times[0] > 0

"""A rank reads its own part of a checkpoint: in memory, and in the pages that it touches."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.tiny_models.tiny_checkpoints import make_tiny_llama

MEASURE = """
import sys
from pathlib import Path
import torch
from rayinfer.models.loader import load_decoder
from rayinfer.tensor_parallel import UNSHARDED, SingleRankGroup, RankCoordinates, Shard

class Absent(SingleRankGroup):
    "Others are not needed to load."
    def __init__(self, rank, size):
        self.rank, self.size = rank, size

def resident_bytes(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

small, large, tensor_rank, tensor_size, stage, stages = *sys.argv[1:3], *map(int, sys.argv[3:])
place = RankCoordinates(stage * tensor_size + tensor_rank, tensor_size, stages)
share = Shard(place, Absent(tensor_rank, tensor_size))
load_decoder(Path(small), torch.float32, torch.device("cpu"), share)  # what first use of the code itself costs
Path("/proc/self/clear_refs").write_text("5")  # the peak starts afresh
before = resident_bytes("VmRSS")
decoder = load_decoder(Path(large), torch.float32, torch.device("cpu"), share)
print(resident_bytes("VmHWM") - before, sum(parameter.nbytes for parameter in decoder.parameters()))
print(*(name for name in ("torch._dynamo", "sympy") if name in sys.modules))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    large = {"hidden": 1024, "layers": 6, "heads": 8, "vocab_size": 8192, "tie": False}
    return [
        make_tiny_llama(folder / "small"),
        make_tiny_llama(folder / "large", dtype="bfloat16", **large),
    ]


def growth_and_weights(models, tensor_rank=0, tensor_size=1, stage=0, stages=1):
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, (*models, tensor_rank, tensor_size, stage, stages))],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    figures, imported = done.stdout.splitlines()
    assert imported == ""  # seconds of every start, for operations on tensors without memory
    return map(int, figures.split())


@pytest.fixture(scope="module")
def whole(models):
    growth, weights = growth_and_weights(models)
    assert weights > 200e6
    assert growth > 0.9 * weights
    return growth


@pytest.mark.parametrize(
    "place", [{"tensor_size": 2, "tensor_rank": 1}, {"stages": 2, "stage": 1}], ids=["rank", "stage"]
)
def test_a_share_takes_its_part_of_the_memory_even_at_the_peak(place, models, whole):
    growth, weights = growth_and_weights(models, **place)
    assert weights > 100e6
    assert growth < 0.65 * whole

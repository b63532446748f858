"""The memory of a model is given back and taken again, measured in the process's own pages."""

import psutil
import pytest
import torch

from rayinfer.engine.plan.executor_commands import SleepLevel
from rayinfer.engine.worker.memory.model_memory import ModelMemory
from rayinfer.errors import ModelLoadError
from rayinfer.kv_cache.cache_tensors import BlockShape

SHAPE = BlockShape(num_layers=2, block_size=16, num_kv_heads=4, head_dim=64, dtype=torch.float32)  # 64 KiB a block
MIB = 1 << 20


class Weights(torch.nn.Module):
    """As much of a decoder as its memory is concerned with."""

    def __init__(self, num_mib=0):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(num_mib, MIB // 4), requires_grad=False)
        self.caches = []

    def bind_kv_caches(self, kv_caches):
        self.caches = list(kv_caches)

    def write(self, block, number):
        for layer, cache in enumerate(self.caches):
            cache.key[block], cache.value[block] = number + layer, -number - layer

    def read(self, block):
        """Return what is in a block, which holds the same number everywhere in a layer, or nothing."""
        number = self.caches[0].key[block].flatten()[0].item()
        for layer, cache in enumerate(self.caches):
            wanted = number + layer if number else 0.0
            assert (cache.key[block] == wanted).all()
            assert (cache.value[block] == -wanted).all()
        return number


def rss():
    return psutil.Process().memory_info().rss


def memory_of(num_blocks, *, num_mib=0, num_offload_blocks=0, load=None):
    return ModelMemory(
        Weights(num_mib),
        load or (lambda: Weights(num_mib)),
        SHAPE,
        num_blocks=num_blocks,
        num_offload_blocks=num_offload_blocks,
    )


def test_nothing_is_given_back_by_the_lightest_sleep():
    memory = memory_of(4)
    decoder, caches = memory.decoder, list(memory.decoder.caches)
    memory.release(SleepLevel.PERSIST, [1])
    memory.restore(SleepLevel.PERSIST)
    assert memory.decoder is decoder
    assert all(before is now for before, now in zip(caches, decoder.caches, strict=True))


@pytest.mark.parametrize("in_use", [[], [3], [2, 0, 4]])
def test_offloading_keeps_the_blocks_in_use_and_those_alone(in_use):
    memory = memory_of(5)
    for block in range(5):
        memory.decoder.write(block, 10.0 * block + 1)
    memory.release(SleepLevel.OFFLOAD, in_use)
    memory.restore(SleepLevel.OFFLOAD)
    assert [memory.decoder.read(block) for block in range(5)] == [
        10.0 * block + 1 if block in in_use else 0.0 for block in range(5)
    ]


def test_offloading_gives_the_pages_of_the_pool_back():
    memory = memory_of(1000)
    for block in range(1000):
        memory.decoder.write(block, 1.0)
    awake = rss()
    memory.release(SleepLevel.OFFLOAD, [5, 6])
    assert awake - rss() > 0.9 * 1000 * SHAPE.num_bytes
    memory.restore(SleepLevel.OFFLOAD)
    assert awake - rss() > 0.8 * 1000 * SHAPE.num_bytes  # until they are written to again


def test_recomputing_gives_weights_and_blocks_back_and_reads_the_weights_again():
    memory = memory_of(1000, num_mib=50, num_offload_blocks=500)
    for block in range(1000):
        memory.decoder.write(block, 1.0)
    memory.copy_out(range(500), range(500))
    awake = rss()
    memory.release(SleepLevel.RECOMPUTE, [])
    assert memory.decoder is None
    assert awake - rss() > 0.9 * (50 * MIB + 1500 * SHAPE.num_bytes)
    memory.restore(SleepLevel.RECOMPUTE)
    assert memory.decoder.read(7) == 0.0
    memory.decoder.write(7, 3.0)
    memory.copy_out([7], [499])
    memory.copy_in([499], [1])
    assert memory.decoder.read(1) == 3.0


def test_blocks_go_out_to_the_second_pool_and_come_back_elsewhere():
    memory = memory_of(3, num_offload_blocks=2)
    for block in range(3):
        memory.decoder.write(block, 1.0 + 10 * block)
    memory.copy_out([2, 0], [0, 1])
    memory.decoder.write(0, 70.0)
    memory.copy_in([1, 0], [1, 0])
    assert [memory.decoder.read(block) for block in range(3)] == [21.0, 1.0, 21.0]


def test_what_the_second_pool_holds_outlasts_offloading():
    memory = memory_of(2, num_offload_blocks=1)
    memory.decoder.write(0, 5.0)
    memory.copy_out([0], [0])
    memory.release(SleepLevel.OFFLOAD, [])
    memory.restore(SleepLevel.OFFLOAD)
    memory.copy_in([0], [1])
    assert [memory.decoder.read(block) for block in range(2)] == [0.0, 5.0]


def test_a_missing_checkpoint_is_reported():
    def load():
        raise ModelLoadError("model.safetensors is gone")

    memory = memory_of(2, load=load)
    memory.release(SleepLevel.RECOMPUTE, [])
    with pytest.raises(ModelLoadError, match="is gone"):
        memory.restore(SleepLevel.RECOMPUTE)
    memory.drop()


@pytest.mark.parametrize("level", [None, *SleepLevel])
def test_everything_can_be_dropped_awake_or_asleep(level):
    memory = memory_of(1000)
    for block in range(1000):
        memory.decoder.write(block, 1.0)
    awake = rss()
    if level is not None:
        memory.release(level, [3])
    memory.drop()
    assert memory.decoder is None
    assert awake - rss() > 0.9 * 1000 * SHAPE.num_bytes

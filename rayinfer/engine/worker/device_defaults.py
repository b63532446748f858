"""Defaults of engine settings by device."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceDefaults:
    """Defaults of the settings that follow the device."""

    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int = 16
    memory_fraction: float | None = None  # None: the pool has a fixed size, `pool_size.CPU_POOL_BYTES`
    max_cudagraph_capture_size: int = 0  # requests; never more than max_num_seqs. 0: no CUDA graphs
    async_scheduling: bool = False  # of an engine of one rank


CPU = DeviceDefaults(max_num_seqs=64, max_num_batched_tokens=512)
CUDA = DeviceDefaults(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    memory_fraction=0.9,
    max_cudagraph_capture_size=512,
    async_scheduling=True,
)
# A static engine allocates max_num_seqs * max_model_len tokens of KV cache and computes a token per row in every step.
STATIC_CUDA = replace(CUDA, max_num_seqs=64, max_num_batched_tokens=2048, memory_fraction=None)


def device_defaults(device_type: str, *, is_static: bool = False) -> DeviceDefaults:
    """Look up the defaults for "cpu" or "cuda"."""
    if device_type != "cuda":
        return CPU
    return STATIC_CUDA if is_static else CUDA

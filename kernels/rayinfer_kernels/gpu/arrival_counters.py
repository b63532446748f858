"""Counters of finished programs, so that the last one of several can combine what all of them left."""

import torch

_LEAST = 1 << 16  # counters that are made at once: 256 KiB
_by_stream: dict[tuple[int | None, int], list[torch.Tensor]] = {}


def arrival_counters(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` int32 zeros, which every kernel that uses them leaves as zeros.

    Launches of one stream share them, for those end one after the other; graphs recorded on it keep their address, so
    they are never freed. A graph recorded on a stream that has none yet gets its own, which it clears itself.
    """
    is_cuda = device.type == "cuda"
    stream = torch.cuda.current_stream(device).cuda_stream if is_cuda else 0
    made = _by_stream.setdefault((device.index, stream), [])
    if made and len(made[-1]) >= count:
        return made[-1]
    zeros = torch.zeros(max(_LEAST, count), dtype=torch.int32, device=device)
    if not (is_cuda and torch.cuda.is_current_stream_capturing()):
        made.append(zeros)
    return zeros

"""Counters by which the last program of several to end knows that it is the last."""

import torch

_LEAST = 1 << 16  # counters that are made at once: 256 KiB
_by_stream: dict[tuple[int | None, int], list[torch.Tensor]] = {}


def arrival_counters(device: torch.device, count: int) -> torch.Tensor:
    """At least `count` int32 zeros, which every kernel that uses them leaves as zeros.

    Launches of one stream share them, for those end one after the other; graphs recorded on it keep their address, so
    they are never freed.
    """
    stream = torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else 0
    made = _by_stream.setdefault((device.index, stream), [])
    if not made or len(made[-1]) < count:
        made.append(torch.zeros(max(_LEAST, count), dtype=torch.int32, device=device))
    return made[-1]

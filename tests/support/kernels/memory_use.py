"""Memory that torch allocates during an action, and that a Python object holds."""

import gc
import itertools
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import NamedTuple

from torch.profiler import ProfilerActivity, profile


class MemoryUse(NamedTuple):
    """All that torch's CPU allocator did: every tensor counts, temporary ones inside operations too."""

    num_allocations: int
    num_bytes: int  # of all allocations together
    num_bytes_at_once: int  # of these, what was held at the worst moment
    num_bytes_kept: int  # what is still held of them, less what was held before and has been given back


def memory_use_of(action: Callable[[], object]) -> MemoryUse:
    """Run the action and say what it took and gave back."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        action()
    events = [event for event in recorded.profiler.kineto_results.events() if event.name() == "[memory]"]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    taken = [change for change in changes if change > 0]
    return MemoryUse(len(taken), sum(taken), max(itertools.accumulate(changes), default=0), sum(changes))


def held_bytes(root: object) -> int:
    """Return the size of an object with all that it refers to, except code."""
    seen, left = {}, [root]
    while left:
        held = left.pop()
        if id(held) not in seen and not isinstance(held, type | ModuleType | FunctionType | BuiltinFunctionType):
            seen[id(held)] = held
            left += gc.get_referents(held)
    return sum(map(sys.getsizeof, seen.values()))

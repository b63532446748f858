from hypothesis import given
from hypothesis import strategies as st

from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from support.kernels.memory_use import held_bytes


def test_running_requests_of_one_adapter_share_its_slot():
    slots = SlotAllocator(2)
    assert (slots.allocate("a"), slots.allocate("b"), slots.allocate("a")) == (0, 1, 0)
    assert slots.running == ["a", "b"]


def test_a_request_without_an_adapter_needs_no_slot():
    slots = SlotAllocator(0)
    assert slots.has_room_for(None)
    assert slots.allocate(None) is None
    slots.free(None)


def test_slots_that_running_requests_have_are_not_reused():
    slots = SlotAllocator(1)
    slots.allocate("a")
    slots.allocate("a")
    slots.free("a")
    assert not slots.has_room_for("b")
    slots.free("a")
    assert slots.has_room_for("b")
    assert slots.allocate("b") == 0


def test_the_adapter_that_was_not_used_for_longest_loses_its_slot():
    slots = SlotAllocator(2)
    for adapter in ("a", "b", "a"):
        slots.allocate(adapter)
        slots.free(adapter)
    assert slots.allocate("c") == 1
    assert slots.allocate("a") == 0


def test_adapters_wait_while_a_request_of_theirs_does_not_run():
    slots = SlotAllocator(2)
    for adapter in ("b", "a", "a", None):
        slots.record_arrival(adapter)
    slots.allocate("a")
    assert (slots.running, slots.waiting) == (["a"], ["a", "b"])
    slots.allocate("a")
    assert slots.waiting == ["b"]
    slots.free("a")  # preempted
    assert slots.waiting == ["a", "b"]
    slots.record_end("a")
    slots.record_end("b")
    assert (slots.waiting, slots.unfinished) == ([], {"a"})


def sized(max_bytes, num_slots=4, **sizes):
    slots = SlotAllocator(num_slots, max_bytes)
    for adapter, num_bytes in sizes.items():
        slots.record_size(adapter, num_bytes)
    return slots


def test_requests_wait_while_the_adapters_of_running_ones_leave_too_few_bytes():
    slots = sized(10, a=6, b=4, c=1)
    for adapter in ("a", "b", "a"):
        assert slots.has_room_for(adapter)
        slots.allocate(adapter)
    assert slots.num_bytes == 10
    assert slots.has_room_for("a")
    assert not slots.has_room_for("c")
    slots.free("a")
    assert not slots.has_room_for("c")
    slots.free("a")
    assert slots.has_room_for("c")


def test_an_adapter_takes_the_bytes_of_as_many_unused_ones_as_it_needs_the_oldest_first():
    slots = sized(10, a=3, b=3, c=3, d=5)
    for adapter in ("a", "b", "c"):
        slots.allocate(adapter)
        slots.free(adapter)
    slots.allocate("b")
    assert slots.has_room_for("d")
    assert slots.allocate("d") == 2  # that of "c"
    assert slots.num_bytes == 8
    assert slots.take_emptied_slots() == (3, 0)
    assert slots.take_emptied_slots() == ()
    assert slots.allocate("b") == 1


def test_a_slot_that_is_taken_again_before_it_is_emptied_is_not_emptied():
    slots = sized(10, a=5, b=5, c=10, d=1)
    for adapter in ("a", "b", "c"):
        slots.allocate(adapter)
        slots.free(adapter)
    assert slots.allocate("d") == 1
    assert slots.take_emptied_slots() == (3, 2, 0)


def test_sizes_of_adapters_that_are_neither_in_memory_nor_in_a_slot_are_forgotten():
    slots = sized(10, a=6, b=6)
    slots.record_arrival("a")
    slots.allocate("a")
    slots.free("a")
    slots.record_end("a")
    slots.forget_size("a")  # it has left host memory, but not its slot
    slots.allocate("b")
    assert slots.num_bytes == 6
    slots.free("b")
    slots.record_size("a", 6)  # read again
    slots.allocate("a")
    assert slots.num_bytes == 6


@given(
    max_bytes=st.integers(6, 20),
    num_slots=st.integers(1, 4),
    actions=st.lists(st.tuples(st.sampled_from("abcdef"), st.booleans()), max_size=60),
)
def test_bytes_in_slots_never_exceed_the_limit_and_slots_are_never_shared(max_bytes, num_slots, actions):
    sizes = dict(zip("abcdef", (1, 2, 3, 4, 5, 6), strict=True))
    slots, running, contents = sized(max_bytes, num_slots, **sizes), [], {}
    for adapter, ends in actions:
        slots.record_size(adapter, sizes[adapter])  # as with every request
        if ends and adapter in running:
            running.remove(adapter)
            slots.free(adapter)
        elif not ends and slots.has_room_for(adapter):
            contents[slots.allocate(adapter)] = adapter
            running.append(adapter)
            for slot in slots.take_emptied_slots():
                contents.pop(slot, None)
        assert sum(sizes[each] for each in contents.values()) == slots.num_bytes <= max_bytes
        assert set(running) <= set(contents.values())
        assert len(set(contents.values())) == len(contents)
        if not running:
            assert slots.has_room_for(adapter)


def test_nothing_is_kept_of_adapters_that_have_left_host_memory_and_slots():
    slots = SlotAllocator(2, 10)
    sizes = []
    for number in range(1000):
        adapter = f"{number:04}"
        slots.record_size(adapter, 3)
        if number % 3:  # some requests are refused, or leave in the queue
            slots.record_arrival(adapter)
            slots.allocate(adapter)
            slots.free(adapter)
            slots.record_end(adapter)
        slots.forget_size(adapter)
        sizes.append(held_bytes(slots))
    assert sizes[-1] <= sizes[20]


def test_emptied_slots_are_returned_again_where_their_step_was_interrupted():
    slots = sized(10, a=6, b=6)
    for adapter in ("a", "b"):
        slots.allocate(adapter)
        slots.free(adapter)
    emptied = slots.take_emptied_slots()
    assert len(emptied) == 3
    slots.resend_emptied_slots()
    assert (slots.take_emptied_slots(), slots.take_emptied_slots()) == (emptied, ())


def test_all_slots_are_forgotten_with_the_model_that_held_them():
    slots = sized(None, a=6, b=6)
    for adapter in ("a", "b"):
        slots.allocate(adapter)
        slots.free(adapter)
    slots.forget_slots()
    assert slots.num_bytes == 0
    assert sorted(slots.take_emptied_slots()) == [0, 1, 2, 3]

from rayinfer.engine.scheduling.slot_allocator import SlotAllocator


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

import numpy as np

from rayinfer.engine.scheduling.request import new_request
from rayinfer.engine.scheduling.waiting_queue import WaitingQueue
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from support.kernels.work_count import count_bytecodes


def request(name, length, priority=0, arrival=0.0):
    return new_request(
        GenerationRequest(
            request_id=name, prompt_token_ids=[5] * length, sampling_params=SamplingParams(), priority=priority
        ),
        np.full(length, 5, np.int32),
        seed=0,
        max_model_len=10_000,
        block_size=4,
        eos_token_ids=(),
        now=arrival,
    )


def queue_of(*requests):
    queue = WaitingQueue(ageing_s=10.0, block_size=4)
    for each in requests:
        queue.add(each)
    return queue


def names(queue):
    return [head.request_id for head in queue.heads()]


def test_the_first_of_each_size_comes_in_the_order_of_all():
    queue = queue_of(
        request("large", 50, arrival=1.0),
        request("small", 4, arrival=2.0),
        request("next small", 3, arrival=3.0),
        request("medium", 12, arrival=4.0),
        request("urgent", 8, priority=-1, arrival=5.0),
    )
    assert names(queue) == ["urgent", "large", "small", "medium"]


def test_requests_of_up_to_one_two_four_or_eight_blocks_are_kept_apart():
    lengths = [1, 4, 5, 8, 9, 16, 17, 32, 33, 64]
    queue = queue_of(*(request(str(length), length) for length in lengths))
    assert names(queue) == ["1", "5", "9", "17", "33"]


def test_equals_of_different_sizes_go_in_the_order_in_which_they_were_added():
    lengths = [17, 1, 33, 5, 9]
    queue = queue_of(*(request(str(length), length) for length in lengths))
    assert names(queue) == [str(length) for length in lengths]


def test_removal_and_return_keep_the_order_of_others():
    first, second, third = (request(name, 4) for name in ("first", "second", "third"))
    queue = queue_of(first, second, third)
    queue.remove(first)
    assert names(queue) == ["second"]
    queue.remove(second)
    queue.put_back(first)
    queue.put_back(second)
    assert names(queue) == ["first"]


def test_a_request_that_has_grown_is_put_back_among_those_of_its_new_size():
    grown, small = request("grown", 4), request("small", 4)
    queue = queue_of(grown, small)
    queue.remove(grown)
    grown.token_ids = np.full(40, 5, np.int32)
    queue.put_back(grown)
    assert names(queue) == ["grown", "small"]
    queue.remove(grown)
    assert names(queue) == ["small"]


def test_looking_costs_the_same_however_many_wait():
    counts = []
    for size in (40, 4000):
        queue = queue_of(*(request(str(i), 1 + i % 40) for i in range(size)))
        counts.append(count_bytecodes(queue.heads))
    assert counts[0] == counts[1]

import pytest

from rayinfer.benchmark.control_plane.overhead.routing_decision import measure_decisions


@pytest.mark.parametrize(("num_waiting", "num_engines"), [(0, 1), (5, 1), (20, 3)])
def test_arrivals_and_dispatches_are_timed(tokenizer, num_waiting, num_engines):
    cost = measure_decisions(tokenizer, num_waiting, num_engines, num_decisions=10)
    assert (cost.num_waiting, cost.num_engines, cost.num_decisions) == (num_waiting, num_engines, 10)
    assert 0 < cost.arrival_us <= cost.p99_us
    assert cost.p50_us <= cost.p99_us
    assert (cost.dispatch_us > 0) == (num_waiting > 0)

"""The mixed requests where decoding steps are recorded, with fake graphs: each request gets what it got alone."""

import itertools
from dataclasses import replace

import pytest

from support.fakes.fake_graphs import record_fake_graphs
from support.golden.invariance_comparison import differences
from support.golden.invariance_runs import ROOMY, open_llm, run, run_shuffled


def check_same(got, alone):
    assert "\n".join(differences(alone.outputs, got.outputs)) == ""


@pytest.mark.parametrize("overlaps", [False, True])
def test_answers_are_the_same_from_recorded_steps_in_a_tight_pool(overlaps, folder, requests, alone):
    limits = {"num_kv_blocks": 14, "max_num_batched_tokens": 48, "max_num_seqs": 11}
    with open_llm(folder, async_scheduling=overlaps, **limits) as llm:
        graphs = record_fake_graphs(llm, draws=True)
        got = run_shuffled(llm, requests, seed=4)
    check_same(got, alone)
    assert graphs.num_replays > 50
    assert len(graphs.made) == 5  # 1, 2, 4, 8, 16


@pytest.mark.parametrize("level", [0, 1, 2])
def test_graphs_are_recorded_again_when_the_engine_wakes(level, folder, requests, alone):
    steps = itertools.count(1)

    def rest(llm):
        if next(steps) % 20:
            return []
        llm.sleep(level)
        told = llm.step()
        llm.wake()
        return told

    chosen = requests[:12]
    with open_llm(folder, async_scheduling=True, num_kv_blocks=40, max_num_seqs=4) as llm:
        graphs = record_fake_graphs(llm)
        got = run(llm, chosen, after_step=rest)
    names = {request.name for request in chosen}
    assert not differences({name: alone.outputs[name] for name in names}, got.outputs)
    assert (len(graphs.made) > 3) == (level > 0)
    assert all(graph.num_replays for graph in (graphs.made[-1], graphs.made[0]))


@pytest.mark.parametrize("overlaps", [False, True])
def test_tokens_that_a_graph_draws_are_those_of_the_sampler(overlaps, folder, requests):
    chosen = [
        request._replace(params=replace(request.params, logprobs=None, prompt_logprobs=None)) for request in requests
    ]
    with open_llm(folder, **ROOMY) as llm:
        expected = run(llm, chosen)
    simple = [request for request in chosen if not request.params.has_penalties and not request.params.has_token_rules]
    with open_llm(folder, async_scheduling=overlaps, **ROOMY) as llm:
        record_fake_graphs(llm, draws=True)
        got = run(llm, simple)
    names = {request.name for request in simple}
    assert len(names) > 10
    assert not differences({name: expected.outputs[name] for name in names}, got.outputs)

import json
from dataclasses import replace
from pathlib import Path

import pytest

from rayinfer.errors import ConfigError
from rayinfer.planning.capacity_plan import Objectives, make_plan
from rayinfer.planning.hardware import CARDS, Hardware, find_card
from rayinfer.planning.model_footprint import footprint_of
from rayinfer.planning.step_times import CPU, GPU, StepTimes

RESULTS = Path(__file__).parents[3] / "kernels" / "benchmarks" / "results"
OBJECTIVES = Objectives(rate=20, ttft_s=1, itl_s=0.05, prompt_len=512, output_len=128)
SMOLLM2 = {
    **{"architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "tie_word_embeddings": True, "vocab_size": 49_152},
    **{"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "head_dim": 64},
    **{"num_attention_heads": 9, "num_key_value_heads": 3, "max_position_embeddings": 8192},
}


@pytest.fixture(scope="module")
def model():
    return footprint_of("Qwen3-8B")


def test_the_shares_are_those_that_the_h100_s_results_give():
    measured = json.loads((RESULTS / "gpu-h100.json").read_text())
    rows = {row["name"]: row for row in measured["rows"]}
    assert CARDS["H100"].read_bytes_per_s == pytest.approx(measured["copy_bytes_per_s"])
    assert CARDS["H100"].operations_per_s == pytest.approx(measured["matmul_flops_per_s"])
    for name in ("B3", "B4"):
        estimated = rows[name]["floor_s"] / GPU.weights + GPU.step_s
        assert estimated == pytest.approx(rows[name]["seconds"][0], rel=0.01)
    assert rows["B7"]["share"] == pytest.approx(GPU.prefill, rel=0.01)
    num_steps = 1023  # of the longest answer
    estimated = rows["B1"]["floor_s"] / GPU.cache + num_steps * GPU.step_s
    assert estimated == pytest.approx(rows["B1"]["seconds"][0], rel=0.01)


def test_the_shares_of_a_cpu_give_the_times_that_were_measured(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(SMOLLM2))
    measured = json.loads((RESULTS / "plan-cpu.json").read_text())
    model = footprint_of(str(tmp_path))
    times = StepTimes(model=model, hardware=Hardware(**measured["hardware"]), efficiency=CPU)
    assert times.prefill_s(256) == pytest.approx(measured["measured_s"]["prefill of 256 tokens"], rel=0.05)
    for batch in (1, 8, 32):
        estimated = times.decode_step_s(batch, 268)
        assert estimated == pytest.approx(measured["measured_s"][f"decoding step of {batch}"], rel=0.05)


def test_a_step_of_one_request_takes_what_was_measured(model):
    times = StepTimes(model=model, hardware=CARDS["H100"], efficiency=GPU)
    assert times.decode_step_s(1, 728) == pytest.approx(5.506e-3, rel=0.02)  # B4: 600 tokens in, 256 out
    assert 128 * times.prefill_s(1024) == pytest.approx(3.084, rel=0.03)  # B7


def test_more_requests_need_more_engines(model):
    plans = [make_plan(model, CARDS["H100"], replace(OBJECTIVES, rate=rate)) for rate in (1, 100, 1000)]
    numbers = [plan.num_engines for plan in plans]
    assert numbers[0] == 1
    assert numbers[0] < numbers[1] < numbers[2]
    for plan in plans:
        assert plan.planned is not None
        assert plan.planned.ttft_mean_s <= plan.planned.ttft_p95_s <= OBJECTIVES.ttft_s
        assert plan.planned.itl_s <= OBJECTIVES.itl_s
        assert plan.planned.requests_per_s == pytest.approx(plan.objectives.rate / plan.num_engines)


def test_objectives_that_one_request_alone_misses_have_no_number(model):
    plan = make_plan(model, CARDS["H100"], replace(OBJECTIVES, itl_s=0.001))
    assert plan.num_engines is None
    reason = plan.tables()[-1].rows[-1][1]
    assert reason.startswith("none: one request alone takes")
    assert reason.endswith(f"{1000 * plan.decode_step_s:.3g} ms for each other")


def test_cards_that_are_unknown_need_their_limits():
    with pytest.raises(ConfigError, match=r"'X9' is unknown: give --bandwidth-gb-s, --tflops, or one of cpu, H100"):
        find_card("X9", memory_gb=24)
    card = find_card("X9", 24, 1000, 100)
    assert (card.read_bytes_per_s, card.operations_per_s, card.basis) == (1e12, 1e14, "as given")
    assert find_card("h100", bandwidth_gb_s=2000).operations_per_s == CARDS["H100"].operations_per_s


def test_what_does_not_fit_or_is_for_other_devices_is_refused(model):
    with pytest.raises(ConfigError, match="does not fit: small leaves 0 tokens"):
        make_plan(model, find_card("small", 16, 1000, 100), OBJECTIVES)
    with pytest.raises(ConfigError, match="'int4' is for CPUs, not for H100"):
        make_plan(model, CARDS["H100"], OBJECTIVES, quantization="int4")
    with pytest.raises(ConfigError, match="more than the 40,960 that Qwen3-8B has"):
        make_plan(model, CARDS["H100"], replace(OBJECTIVES, prompt_len=40_960))


def test_limits_of_several_devices_are_sums_and_not_measured(model):
    plan = make_plan(model, CARDS["H100"].times(2), OBJECTIVES)
    assert plan.hardware.basis == "2 times: measured on an H100 80GB HBM3; communication between them is not counted"
    with pytest.raises(ConfigError, match="Qwen3-8B has 32 attention heads, too few for 33 devices"):
        make_plan(model, CARDS["H100"].times(33), OBJECTIVES)


def test_every_figure_has_a_basis(model):
    plan = make_plan(model, CARDS["H100"], OBJECTIVES)
    assert all(row[2] for table in plan.tables() for row in table.rows)
    assert json.loads(json.dumps(plan.as_json()))["num_engines"] == plan.num_engines

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rayinfer.benchmark.peers.comparison import Plan, interleave, run_comparison
from rayinfer.benchmark.peers.comparison_report import notes, svg, tables
from rayinfer.benchmark.peers.results import CaseResults, Outcome, ratios_of, read_results, write_results
from rayinfer.benchmark.peers.systems import SystemUnderTest
from rayinfer.errors import ConfigError, RayinferError
from support.fakes.fake_peers import engine_command, fake_system, make_setup, server_command

RECORDED = Path(__file__).parents[4] / "kernels" / "benchmarks" / "results"
ENVIRONMENT = {"cpu_model": "Some <CPU>", "num_cpus": 2, "commit": "0123456789abcdef"}


def results_of(case, outcomes=(), **fields):
    return CaseResults(
        case=case,
        date="2026-11-21T10:00:00+00:00",
        command=f"rayinfer bench peers --work {case}",
        environment=ENVIRONMENT,
        cpu_flags=["avx2"],
        rounds=3,
        outcomes=dict(outcomes),
        **fields,
    )


def test_rounds_are_interleaved_and_a_failure_ends_only_its_own_system():
    order, results, systems = [], results_of("batch"), [fake_system(name) for name in "abc"]

    def measure(system):
        order.append(system.name)
        if system.name == "b" and order.count("b") > 1:
            raise RayinferError("it broke")
        return {"batch": float(len(order))}

    interleave(systems, results, measure, read_memory=lambda: 50.0, log=lambda text: None)
    assert order == list("abcabcac")
    assert results.memory_read_gb_s == [50.0] * 3
    assert [outcome.runs["batch"] for outcome in results.outcomes.values()] == [[1, 4, 7], [2], [3, 6, 8]]
    assert [outcome.failure for outcome in results.outcomes.values()] == [None, "it broke", None]


def test_a_comparison_reports_figures_failures_and_missing_systems(tmp_path):
    systems = [
        fake_system("rayinfer", engine_command=engine_command(tmp_path), server_command=server_command(tmp_path)),
        fake_system("broken", engine_command=engine_command(tmp_path, opening="1 / 0"), server_command=["false"]),
        SystemUnderTest(name="absent", mode="int8", missing="it is not installed"),
    ]
    setup, lines = make_setup(tmp_path), []

    def run(*cases):
        plan = Plan(cases=cases, rounds=2, command="bench", results_folder=tmp_path / "results")
        return run_comparison(systems, setup, plan, lines.append, read_memory=lambda num_threads: 42.0)

    first = run("prefill").results["prefill"]
    assert len(first.outcomes["rayinfer bfloat16"].runs["prefill"]) == 2
    assert "ZeroDivisionError" in first.outcomes["broken bfloat16"].failure
    assert first.missing == {"absent int8": "it is not installed"}
    assert "absent int8 is not measured: it is not installed" in lines
    report = run("start")
    assert list(report.results) == ["prefill", "start"]  # those measured before are kept
    assert report.results["prefill"] == first
    start = report.results["start"].outcomes
    assert len(start["rayinfer bfloat16"].runs["ready"]) == 2
    assert "its server has ended" in start["broken bfloat16"].failure
    text = report.markdown_file.read_text()
    assert "absent int8 was not measured: it is not installed" in text
    assert "broken bfloat16 failed at prefill: ZeroDivisionError" in text
    assert report.svg_file.read_text().startswith("<svg")


def test_an_unknown_case_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="work must be some of batch,stream,prefill,http,start, got swimming"):
        Plan(cases=("batch", "swimming"), rounds=2, command="", results_folder=tmp_path)


@pytest.fixture
def results():
    batch = {
        "rayinfer bfloat16": Outcome(weight_bits=16, version="1", runs={"batch": [1300.0, 1310.0, 900.0]}),
        "rayinfer int8": Outcome(weight_bits=8, runs={"batch": [2000.0]}, concession="int8 loses much"),
        "vllm bfloat16": Outcome(weight_bits=16, version="0.32", runs={"batch": [735.0, 650.0, 780.0]}),
        "openvino int8": Outcome(weight_bits=8, failure="it broke"),
    }
    start = {
        "rayinfer bfloat16": Outcome(weight_bits=16, runs={"ready": [8.0]}),
        "vllm bfloat16": Outcome(weight_bits=16, runs={"ready": [60.0]}),
    }
    return {"batch": results_of("batch", batch), "start": results_of("start", start)}


def test_results_are_read_as_they_were_written_and_older_ones_too(results, tmp_path):
    write_results(results, tmp_path / "new" / "peers.json")
    assert read_results(tmp_path / "new" / "peers.json") == results
    for path in RECORDED.glob("peers-*.json"):
        assert list(read_results(path)) == list(json.loads(path.read_text()))
        assert ratios_of(read_results(path))


def test_ratios_compare_medians_of_equal_widths_and_invert_times(results):
    assert {(ratio.figure, ratio.own_label, ratio.peer_label): ratio.better_by for ratio in ratios_of(results)} == {
        ("batch", "rayinfer bfloat16", "vllm bfloat16"): pytest.approx(1300 / 735),
        ("ready", "rayinfer bfloat16", "vllm bfloat16"): pytest.approx(7.5),
    }


def test_tables_hold_medians_ratios_and_conditions(results):
    lines = [line for table in tables(results) for line in table.lines()] + notes(results)
    text = "\n".join(lines)
    for part in (
        "| 1,300 ",
        "**1.77x**",
        "0123456789ab",
        "vllm bfloat16: 0.32",
        "failed at batch: it broke",
        "loses much",
    ):
        assert part in text


def test_the_figure_has_a_bar_for_every_median_the_best_first(results):
    bars = ElementTree.fromstring(svg("tiny", results)).findall("{http://www.w3.org/2000/svg}rect")
    assert [bar.get("class") for bar in bars] == ["blue", "blue", "grey", "blue", "grey"]
    assert float(bars[0].get("width")) > float(bars[1].get("width")) > float(bars[2].get("width"))
    assert float(bars[3].get("width")) < float(bars[4].get("width"))

import json
import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from rayinfer.benchmark.peers.cases import http_requests
from rayinfer.benchmark.peers.comparison import Plan, run_comparison
from rayinfer.benchmark.peers.comparison_report import notes, svg, tables
from rayinfer.benchmark.peers.extremes import write_extremes
from rayinfer.benchmark.peers.results import (
    CaseResults,
    Outcome,
    ratios_of,
    read_results,
    speculation_ratios_of,
    write_results,
)
from rayinfer.benchmark.peers.systems import SystemUnderTest
from rayinfer.errors import ConfigError
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


def compare(folder, systems, *cases, log=lambda text: None, clock=time.monotonic, **settings):
    plan = Plan(**({"cases": cases, "rounds": 2, "command": "bench", "results_folder": folder / "results"} | settings))
    return run_comparison(systems, make_setup(folder), plan, log, read_memory=lambda num_threads: 42.0, clock=clock)


def runs_of(report, case):
    return {label: outcome.num_runs for label, outcome in report.results[case].outcomes.items()}


@pytest.fixture
def prefills(tmp_path):
    """Return two systems, and what lists their measured prefills in their order."""
    noted = tmp_path / "noted"

    def engine(name, extra="pass"):
        note = f"open({str(noted)!r}, 'a').write({name!r} * (len(prompts[0]) == 512)); {extra}; return lengths"
        return fake_system(name, engine_command=engine_command(tmp_path, generate=note))

    # Every run has three measurements. The second system dies at the first of its second run, once.
    dying = f"len(prompts[0]) == 512 and open({str(noted)!r}).read().count('b') == 4 and __import__('os')._exit(3)"
    return [engine("a"), engine("b", dying)], noted.read_text


def test_rounds_are_interleaved_and_a_failure_ends_only_its_own_system(tmp_path, prefills):
    systems, noted = prefills
    lines = []
    report = compare(tmp_path, systems, "prefill", rounds=3, log=lines.append)
    assert noted() == "aaabbbaaab" + "aaa"
    assert report.results["prefill"].memory_read_gb_s == [42.0] * 3
    assert runs_of(report, "prefill") == {"a bfloat16": 3, "b bfloat16": 1}
    assert "its process has ended" in report.results["prefill"].outcomes["b bfloat16"].failure
    assert not any("goes on" in line for line in lines)  # a failure is no lack of time


def test_a_comparison_goes_on_where_it_ended_and_measures_nothing_twice(tmp_path, prefills):
    systems, noted = prefills
    compare(tmp_path, systems, "prefill")
    before = noted()
    report = compare(tmp_path, systems, "prefill")  # the system that failed is tried again
    assert noted().removeprefix(before) == "bbb"
    assert runs_of(report, "prefill") == {"a bfloat16": 2, "b bfloat16": 2}
    assert report.results["prefill"].outcomes["b bfloat16"].failure is None
    assert compare(tmp_path, systems, "prefill").results == report.results
    assert noted() == before + "bbb"
    compare(tmp_path, systems, "prefill", rounds=3)
    assert noted() == before + "bbb" + "aaabbb"


def test_every_run_is_written_at_once_so_that_a_killed_comparison_loses_none(tmp_path, prefills):
    systems, noted = prefills

    def interrupting(text):
        if "round 2" in text:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(tmp_path, systems, "prefill", log=interrupting)
    (written,) = (tmp_path / "results").glob("peers-tiny-someproc.json")
    assert [outcome.num_runs for outcome in read_results(written)["prefill"].outcomes.values()] == [1, 1]
    compare(tmp_path, systems, "prefill")
    assert noted() == "aaabbb" + "aaab"


def test_another_configuration_or_a_fresh_start_measures_again(tmp_path, prefills):
    systems, noted = prefills
    first = compare(tmp_path, systems[:1], "prefill", rounds=1).results["prefill"]
    for settings in ({"is_fresh": True}, {"num_requests": 2}):
        before = noted()
        report = compare(tmp_path, systems[:1], "prefill", rounds=1, **settings)
        assert noted().removeprefix(before) == "aaa"
    assert runs_of(report, "prefill") == {"a bfloat16": 1}
    assert report.results["prefill"].configuration != first.configuration
    newer = replace(systems[0], version="2")
    assert compare(tmp_path, [newer], "prefill", rounds=1, num_requests=2).results["prefill"].configuration not in (
        first.configuration,
        report.results["prefill"].configuration,
    )


def test_a_spent_time_budget_ends_between_two_runs_and_names_those_missing(tmp_path, prefills):
    systems, noted = prefills
    lines = []
    # The clock is read at the start, before either engine opens, and before every run.
    report = compare(
        tmp_path, systems, "prefill", time_budget_s=60, clock=iter([0, 1, 1, 30, 61]).__next__, log=lines.append
    )
    assert noted() == "aaa"
    assert runs_of(report, "prefill") == {"a bfloat16": 1, "b bfloat16": 0}
    assert "prefill: a bfloat16 has 1 of 2 runs; prefill: b bfloat16 has 0 of 2 runs" in lines[-1]
    assert "Not finished: prefill: b bfloat16 has 0 of 2 runs" in report.markdown_file.read_text()


def test_a_batch_has_the_requests_that_were_asked_for(tmp_path):
    system = fake_system("rayinfer", engine_command=engine_command(tmp_path))
    report = compare(tmp_path, [system], "batch", num_requests=3, rounds=1)
    assert "| 3 requests, output tok/s" in report.markdown_file.read_text()
    assert http_requests(64) == {1: 8, 8: 48, 32: 128}
    assert http_requests(8) == {1: 1, 8: 8, 32: 32}


def test_a_comparison_reports_figures_failures_and_missing_systems(tmp_path):
    systems = [
        fake_system("rayinfer", engine_command=engine_command(tmp_path), server_command=server_command(tmp_path)),
        fake_system("broken", engine_command=engine_command(tmp_path, opening="1 / 0"), server_command=["false"]),
        SystemUnderTest(name="absent", mode="int8", missing="it is not installed"),
    ]
    lines = []
    first = compare(tmp_path, systems, "prefill", log=lines.append).results["prefill"]
    assert len(first.outcomes["rayinfer bfloat16"].runs["prefill"]) == 2
    assert "ZeroDivisionError" in first.outcomes["broken bfloat16"].failure
    assert first.missing == {"absent int8": "it is not installed"}
    assert "absent int8 is not measured: it is not installed" in lines
    report = compare(tmp_path, systems, "start")
    assert list(report.results) == ["prefill", "start"]  # those measured before are kept
    assert report.results["prefill"] == first
    start = report.results["start"].outcomes
    assert len(start["rayinfer bfloat16"].runs["ready"]) == 2
    assert "its server has ended" in start["broken bfloat16"].failure
    text = report.markdown_file.read_text()
    assert "absent int8 was not measured: it is not installed" in text
    assert "broken bfloat16 failed at prefill: ZeroDivisionError" in text
    assert report.svg_file.read_text().startswith("<svg")


def test_a_server_that_fails_under_load_keeps_its_time_to_ready(tmp_path):
    server = server_command(tmp_path, missing_tokens=1)
    results = compare(tmp_path, [fake_system(server_command=server)], "http", "start").results
    assert results["start"].outcomes["fake bfloat16"].num_runs == 2
    assert "tokens instead of" in results["http"].outcomes["fake bfloat16"].failure


def test_the_worst_and_the_best_processor_stand_side_by_side(results, tmp_path):
    batch = results["batch"]
    batch.model = "tiny"
    for machine, own, num_requests in (("zen3", 735.0, 32), ("zen5-avx2", 2205.0, 64)):
        batch.outcomes["rayinfer bfloat16"].runs["batch"] = [own]
        write_results({"batch": replace(batch, num_requests=num_requests)}, tmp_path / f"peers-tiny-{machine}.json")
    write_results({"batch": replace(batch, model="tiny-other")}, tmp_path / "peers-tiny-other-zen9.json")
    write_extremes("tiny", tmp_path)
    text = (tmp_path / "peers-tiny.processors.md").read_text()
    assert "| 1.00x vllm bfloat16, zen3 | 3.00x vllm bfloat16, zen5-avx2 |" in text
    assert "| 32 or 64 requests |" in text
    assert "zen9" not in text


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


def test_a_mode_with_speculation_is_compared_with_itself_without(results):
    runs = {"batch": [1170.0, 1300.0]}
    results["batch"].outcomes["rayinfer bfloat16+speculation"] = Outcome(weight_bits=16, runs=runs)
    (ratio,) = speculation_ratios_of(results)
    assert (ratio.own_label, ratio.peer_label) == ("rayinfer bfloat16+speculation", "rayinfer bfloat16")
    assert ratio.better_by == pytest.approx(0.95)
    assert (tables(results)[-2].title, tables(results)[-2].rows[0][-1]) == ("Speculation", "**0.95x**")


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

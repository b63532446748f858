import json
from xml.etree import ElementTree

import pytest

from rayinfer.benchmark.peers.plot import svg
from rayinfer.benchmark.peers.ratios import ratios_of
from rayinfer.benchmark.peers.results import Outcome, Section, read_sections, write_sections
from rayinfer.benchmark.peers.table import markdown

ENVIRONMENT = {"cpu_model": "Some <CPU>", "num_cpus": 2, "commit": "0123456789abcdef"}


def make_section(work, outcomes, **fields):
    return Section(
        work=work,
        date="2026-11-21T10:00:00+00:00",
        command=f"rayinfer bench peers --work {work}",
        environment=ENVIRONMENT,
        cpu_flags=["avx2"],
        rounds=3,
        memory_read_gb_s=[50.0, 51.0, 49.5],
        outcomes=outcomes,
        **fields,
    )


@pytest.fixture
def sections():
    batch = {
        "rayinfer bfloat16": Outcome(weight_bits=16, version="1", runs={"batch": [1300.0, 1310.0, 900.0]}),
        "rayinfer int8": Outcome(weight_bits=8, version="1", runs={"batch": [2000.0]}),
        "vllm bfloat16": Outcome(weight_bits=16, version="0.32", runs={"batch": [735.0, 650.0, 780.0]}),
        "openvino int8": Outcome(weight_bits=8, version="3", failure="it broke"),
    }
    start = {
        "rayinfer bfloat16": Outcome(weight_bits=16, runs={"ready": [8.0]}),
        "vllm bfloat16": Outcome(weight_bits=16, runs={"ready": [60.0]}),
    }
    missing = {"llama.cpp q8_0": "it is not installed"}
    return {"batch": make_section("batch", batch, missing=missing), "start": make_section("start", start)}


def test_results_are_read_as_they_were_written(sections, tmp_path):
    write_sections(sections, tmp_path / "new" / "peers.json")
    assert read_sections(tmp_path / "new" / "peers.json") == sections
    assert json.loads((tmp_path / "new" / "peers.json").read_text())["batch"]["outcomes"]["vllm bfloat16"]["runs"]
    assert read_sections(tmp_path / "none.json") == {}


def test_ratios_compare_medians_of_weights_as_wide_and_turn_times_round(sections):
    found = {(ratio.figure, ratio.own_label, ratio.peer_label): ratio.better_by for ratio in ratios_of(sections)}
    assert found == {
        ("batch", "rayinfer bfloat16", "vllm bfloat16"): pytest.approx(1300 / 735),
        ("ready", "rayinfer bfloat16", "vllm bfloat16"): pytest.approx(7.5),
    }


def test_the_tables_hold_figures_ratios_circumstances_and_who_was_absent(sections):
    text = markdown("tiny", sections)
    assert "| rayinfer bfloat16 | 1,300 |" in text
    assert "**1.77x**" in text
    assert "50 51 49.5" in text
    assert "0123456789ab" in text
    assert "- `rayinfer bench peers --work batch`" in text
    assert "- llama.cpp q8_0: it is not installed" in text
    assert "- openvino int8 failed at batch: it broke" in text
    assert "- vllm bfloat16: 0.32" in text


def test_the_picture_has_a_bar_for_every_median_the_best_first(sections):
    picture = ElementTree.fromstring(svg("tiny", sections))
    name = "{http://www.w3.org/2000/svg}"
    bars = picture.findall(f"{name}rect")
    assert len(bars) == 5
    assert [bar.get("class") for bar in bars[:3]] == ["own", "own", "peer"]
    assert float(bars[0].get("width")) > float(bars[1].get("width")) > float(bars[2].get("width"))
    assert float(bars[3].get("width")) < float(bars[4].get("width"))
    assert "prefers-color-scheme: dark" in picture.find(f"{name}style").text
    assert any("Some <CPU>" in (text.text or "") for text in picture.findall(f"{name}text"))


def test_a_picture_of_nothing_is_still_a_picture():
    ElementTree.fromstring(svg("tiny", {}))
    assert "None: a ratio needs" in markdown("tiny", {})

import pytest

from rayinfer.benchmark.peers.comparison import Plan, find_contenders, run_comparison
from rayinfer.benchmark.peers.system_under_test import Missing
from rayinfer.errors import ConfigError
from support.fakes.fake_peers import make_adapter, make_contender, make_server, make_setup


def make_plan(folder, *works, rounds=2):
    return Plan(works=works, rounds=rounds, command="rayinfer bench peers", results_folder=folder)


@pytest.fixture
def compare(tmp_path):
    """Compare two fakes, one of which fails, beside one that is missing."""
    setup, broken_folder = make_setup(tmp_path), tmp_path / "broken"
    broken_folder.mkdir()
    broken = make_adapter(broken_folder, answer="raise MemoryError('too much')")
    found = [
        make_contender(setup, make_adapter(tmp_path), name="rayinfer", server=make_server(tmp_path)),
        make_contender(setup, broken, name="broken"),
        Missing(label="absent int8", reason="it is not installed"),
    ]

    def run(*works):
        told = []
        plan = make_plan(tmp_path / "results", *works)
        return run_comparison(found, setup, plan, told.append, read_memory=lambda num_threads: 42.0), told

    return run


def test_a_comparison_writes_its_three_files_whoever_fails(compare):
    report, told = compare("prefill")
    section = report.sections["prefill"]
    assert len(section.outcomes["rayinfer bfloat16"].runs["prefill"]) == 2
    assert "too much" in section.outcomes["broken bfloat16"].failure
    assert section.missing == {"absent int8": "it is not installed"}
    assert section.memory_read_gb_s == [42.0, 42.0]
    assert report.markdown_file.name == "peers-tiny.md"
    assert "absent int8: it is not installed" in report.markdown_file.read_text()
    assert report.json_file.exists()
    assert report.svg_file.read_text().startswith("<svg")
    assert "absent int8 does not take part: it is not installed" in told


def test_works_that_are_measured_later_join_those_that_are_there(compare):
    first, _ = compare("prefill", "batch")
    second, _ = compare("start")
    assert list(second.sections) == ["batch", "prefill", "start"]
    assert second.sections["batch"] == first.sections["batch"]
    assert "ready" in second.sections["start"].outcomes["rayinfer bfloat16"].runs


def test_a_work_that_does_not_exist_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="work must be some of batch,stream,prefill,http,start, got swimming"):
        make_plan(tmp_path, "batch", "swimming")


def test_everybody_is_looked_for_and_ourselves_first(tmp_path):
    found = find_contenders(make_setup(tmp_path), ("bfloat16",))
    assert [one.label.split()[0] for one in found] == ["rayinfer", "vllm", *["openvino"] * 2, *["llama.cpp"] * 3]

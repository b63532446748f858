from dataclasses import replace

from rayinfer.benchmark.peers.own import own_contenders
from rayinfer.benchmark.peers.results import Section, read_sections, write_sections
from rayinfer.benchmark.peers.system_under_test import Contender, Missing
from rayinfer.benchmark.peers.table import markdown
from support.fakes.fake_peers import make_setup

NOWHERE = {"cpu_model": "none", "num_cpus": 1, "commit": None}


def test_our_engine_and_our_server_get_the_same_settings(tmp_path):
    (contender,) = own_contenders(make_setup(tmp_path), ("bfloat16",))
    assert isinstance(contender, Contender)
    assert contender.label == "rayinfer bfloat16"
    arguments = contender.server.arguments
    assert arguments[arguments.index("--num-threads") + 1] == "1"
    assert "--no-enable-prefix-caching" in arguments


def test_a_mode_that_does_not_exist_is_missing(tmp_path):
    (found,) = own_contenders(make_setup(tmp_path), ("float13",))
    assert isinstance(found, Missing)
    assert "choose from bfloat16, int8" in found.reason


def test_a_mode_above_its_limit_runs_all_the_same_and_says_so(tmp_path):
    setup = replace(make_setup(tmp_path), model="smollm2-135m")
    plain, int4 = own_contenders(setup, ("bfloat16", "int4"))
    assert plain.concession is None
    assert "--allow-inaccurate-quantization" not in plain.server.arguments
    assert "int4 makes perplexity" in int4.concession
    assert "(smollm2-135m)" in int4.concession
    # A flag, without a value behind it.
    assert int4.server.arguments[int4.server.arguments.index("--allow-inaccurate-quantization") + 1 :] == []


def test_what_was_allowed_stands_in_the_table_and_the_file(tmp_path):
    setup = replace(make_setup(tmp_path), model="smollm2-135m")
    (int4,) = own_contenders(setup, ("int4",))
    section = Section(work="batch", date="", command="", environment=NOWHERE, cpu_flags=[], rounds=1)
    section.add(int4, {})
    write_sections({"batch": section}, tmp_path / "peers.json")
    found = read_sections(tmp_path / "peers.json")
    assert found["batch"].outcomes["rayinfer int4"].concession == int4.concession
    assert f"- rayinfer int4: {int4.concession}" in markdown("smollm2-135m", found)

import dataclasses

import pytest

from rayinfer.benchmark.peers.results import Section
from rayinfer.benchmark.peers.rounds import EngineHall, measure_servers, take_turns
from rayinfer.errors import RayinferError
from support.fakes.fake_peers import make_adapter, make_contender, make_server, make_setup


def make_section(work="batch", rounds=3):
    return Section(work=work, date="2026-11-21", command="c", environment={}, cpu_flags=[], rounds=rounds)


@pytest.fixture
def contenders(tmp_path):
    setup = make_setup(tmp_path)
    return [make_contender(setup, make_adapter(tmp_path), name=name) for name in "abc"]


def ignore(text):
    pass


def test_everybody_has_a_turn_before_anybody_has_a_second(contenders):
    order, section = [], make_section()

    def measure(contender):
        order.append(contender.name)
        return {"batch": float(len(order))}

    take_turns(contenders, section, measure, read_memory=lambda: 50.0, tell=ignore)
    assert order == list("abcabcabc")
    assert section.memory_read_gb_s == [50.0] * 3
    assert section.outcomes["b bfloat16"].runs == {"batch": [2.0, 5.0, 8.0]}
    assert section.outcomes["b bfloat16"].median("batch") == 5.0


def test_who_fails_is_out_and_the_others_go_on(contenders):
    section = make_section()

    def measure(contender):
        if contender.name == "b" and section.outcomes["b bfloat16"].runs:
            raise RayinferError("it broke")
        return {"batch": 1.0}

    take_turns(contenders, section, measure, read_memory=lambda: 50.0, tell=ignore)
    assert [len(outcome.runs["batch"]) for outcome in section.outcomes.values()] == [3, 1, 3]
    assert [outcome.failure for outcome in section.outcomes.values()] == [None, "it broke", None]


def test_an_engine_that_does_not_open_leaves_the_others_their_turns(tmp_path):
    setup, broken_folder = make_setup(tmp_path), tmp_path / "broken"
    broken_folder.mkdir()
    good = make_contender(setup, make_adapter(tmp_path), name="good")
    broken = make_contender(setup, make_adapter(broken_folder, opening="1 / 0"), name="broken")
    section = make_section()
    with EngineHall(tmp_path, ignore) as hall:
        hall.open([broken, good])
        assert hall.those_for("batch", [broken, good], section) == [good]
        assert hall.measure("batch", good)["batch"] > 0
    assert "ZeroDivisionError" in section.outcomes["broken bfloat16"].failure


def test_servers_take_turns_and_their_starts_are_timed(tmp_path):
    setup, server = make_setup(tmp_path), make_server(tmp_path)
    ending = dataclasses.replace(server, arguments=["false"])
    contenders = [
        make_contender(setup, None, name="good", server=server),
        make_contender(setup, None, name="ends", server=ending),
        make_contender(setup, None, name="serverless"),
    ]
    sections = {work: make_section(work, rounds=2) for work in ("http", "start")}
    measure_servers(contenders, sections, logs=tmp_path, vocab_size=200, read_memory=lambda: 50.0, tell=ignore)
    assert len(sections["start"].outcomes["good bfloat16"].runs["ready"]) == 2
    assert len(sections["http"].outcomes["good bfloat16"].runs["ttft_p50_32"]) == 2
    assert "its server has ended" in sections["http"].outcomes["ends bfloat16"].failure
    assert "serverless bfloat16" not in sections["http"].outcomes
    assert sections["start"].memory_read_gb_s == [50.0, 50.0]

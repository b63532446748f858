import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rayinfer.benchmark.peers.machine import memory_read_gb_s, processor_kind
from rayinfer.benchmark.peers.processes import measure_server, open_engine, running_server
from rayinfer.benchmark.peers.systems import LLAMA_CPP
from rayinfer.errors import RayinferError
from support.fakes.fake_peers import engine_command, fake_system, make_program, server_command
from support.services.polling import wait_until


@pytest.fixture
def open_with(tmp_path):
    """Open an engine whose functions have these lines."""

    def opened(timeout_s=20.0, **lines):
        system = fake_system(engine_command=engine_command(tmp_path, **lines))
        return open_engine(system, tmp_path / "log", 200, timeout_s)

    return opened


def test_decoding_is_timed_apart_from_the_prefill_whatever_an_engine_prints(open_with, tmp_path):
    own_clock = "clock = [0.0]; time.perf_counter = lambda: clock[0]"
    with open_with(opening=own_clock, generate="clock[0] += 0.02 + sum(lengths) * 1e-4; return lengths") as engine:
        figures = engine.measure("stream")
    assert figures["stream"] == pytest.approx(1e4)
    assert figures["stream_with_prefill"] == pytest.approx(128 / 0.0328)
    assert "noise" in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ({"opening": "raise ValueError('no such model')"}, "ValueError: no such model"),
        (
            {"generate": "sys.stderr.write('out of memory'); sys.stderr.flush(); __import__('os')._exit(3)"},
            "out of mem",
        ),
        ({"generate": "return lengths[1:]"}, "other lengths"),
        ({"generate": "time.sleep(60)", "timeout_s": 1.0}, "no reply for 1 s"),
    ],
)
def test_an_engine_that_fails_is_an_error_with_its_reason(open_with, lines, message):
    with pytest.raises(RayinferError, match=message), open_with(**lines):
        pass


def thread_states(threads: Path) -> list[str]:
    return [(thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.iterdir()]


def test_an_engine_uses_no_processor_time_while_others_are_measured(open_with, tmp_path):
    spinning = (
        "import os, threading; open('%s', 'w').write(str(os.getpid())); "
        "threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()" % (tmp_path / "pid")
    )
    with open_with(opening=spinning) as engine:
        stat = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
        threads = stat.parent / "task"
        wait_until(lambda: all(state == "T" for state in thread_states(threads)))  # a signal takes a moment
        before = stat.read_text().split()[13]
        time.sleep(0.2)
        assert stat.read_text().split()[13] == before
        assert engine.measure("prefill")["prefill"] > 0
    assert not stat.exists()


def test_llama_cpp_is_measured_by_its_own_benchmark(tmp_path):
    bench = """
        import json, sys
        prompt, generated = (int(sys.argv[sys.argv.index(name) + 1]) for name in ("-p", "-n"))
        print(json.dumps([{"avg_ts": 1000.0 + prompt + generated}]))
        raise SystemExit("unknown architecture" if "fail" in sys.argv else None)
    """
    command = [str(make_program(tmp_path / "llama-bench", bench))]
    system = fake_system(LLAMA_CPP, engine_command=command)
    with open_engine(system, tmp_path / "log", 200) as engine:
        assert engine.measure("stream") == {"stream": 1128.0}
        assert engine.measure("prefill") == {"prefill": 1512.0}
    failing = replace(system, engine_command=[*command, "fail"])
    with open_engine(failing, tmp_path / "log", 200) as engine, pytest.raises(RayinferError, match="unknown arch"):
        engine.measure("stream")


def test_a_server_is_loaded_with_one_eight_and_thirty_two_streams(tmp_path):
    with running_server(fake_system(server_command=server_command(tmp_path)), tmp_path / "log") as server:
        figures = measure_server(server, "m", vocab_size=200)
        assert 0 < server.ready_s < 20
    assert set(figures) == {f"{name}_{streams}" for name in ("http", "ttft_p50", "ttft_p99") for streams in (1, 8, 32)}
    assert all(value > 0 for value in figures.values())


def test_outputs_that_are_too_short_are_no_measurement(tmp_path):
    system = fake_system(server_command=server_command(tmp_path, missing_tokens=1))
    with (
        running_server(system, tmp_path / "log") as server,
        pytest.raises(RayinferError, match="returned 3 tokens instead of 4"),
    ):
        measure_server(server, "m", vocab_size=200)


def test_a_server_that_ends_or_is_never_ready_is_an_error(tmp_path):
    ending = fake_system(server_command=[sys.executable, "-c", "raise SystemExit('no model')"])
    with pytest.raises(RayinferError, match="ended: no model"), running_server(ending, tmp_path / "log"):
        pass
    never = replace(fake_system(server_command=server_command(tmp_path)), ready_path="/nowhere")
    with (
        pytest.raises(RayinferError, match="not ready in time"),
        running_server(never, tmp_path / "log", timeout_s=1.0),
    ):
        pass


def test_memory_is_read_at_some_speed():
    assert 0.01 < memory_read_gb_s(2, num_bytes=2**20) < 10_000


def test_the_kind_of_processor_is_its_generation_or_its_numbers(tmp_path):
    def kind(vendor, family, model):
        text = f"vendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: Some CPU\n"
        (tmp_path / "cpuinfo").write_text(f"processor\t: 0\n{text}\nprocessor\t: 1\n{text}")
        return processor_kind(tmp_path / "cpuinfo")

    assert kind("AuthenticAMD", 25, 1) == "zen3"
    assert kind("AuthenticAMD", 25, 17) == "zen4"
    assert kind("AuthenticAMD", 26, 2) == "zen5"
    assert kind("GenuineIntel", 6, 143) == "sapphire-rapids"
    assert kind("GenuineIntel", 6, 999) == "genuineintel-6-999"
    assert processor_kind(tmp_path / "absent")

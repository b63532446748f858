import os
import time
from pathlib import Path

import pytest

from rayinfer.benchmark.peers.engine_process import engine_process
from rayinfer.errors import RayinferError
from support.fakes.fake_peers import make_adapter, make_setup
from support.services.service_client import wait_until


@pytest.fixture
def open_with(tmp_path):
    """Open an engine whose adapter has these lines."""

    def open_engine(timeout_s=20.0, **lines):
        setup, adapter = make_setup(tmp_path), make_adapter(tmp_path, **lines)
        return engine_process(adapter, {}, setup=setup, log=tmp_path / "log", timeout_s=timeout_s)

    return open_engine


def test_an_engine_is_measured_whatever_it_prints(open_with, tmp_path):
    with open_with() as engine:
        assert engine.measure("batch")["batch"] > 0
        assert set(engine.measure("stream")) == {"stream", "stream_with_prefill"}
        assert engine.version == pytest.__version__
    assert "noise" in (tmp_path / "log").read_text()


def test_decoding_is_timed_apart_from_the_prefill(open_with):
    own_clock = "clock = [0.0]; time.perf_counter = lambda: clock[0]"
    with open_with(opening=own_clock, answer="clock[0] += 0.02 + sum(lengths) * 1e-4; return lengths") as engine:
        figures = engine.measure("stream")
    assert figures["stream"] == pytest.approx(1e4)
    assert figures["stream_with_prefill"] == pytest.approx(128 / 0.0328)


def test_an_engine_that_does_not_open_says_why(open_with):
    with (
        pytest.raises(RayinferError, match="ValueError: no such model"),
        open_with(opening="raise ValueError('no such model')"),
    ):
        pass


def test_an_engine_that_dies_shows_its_last_words(open_with):
    dying = "import os, sys; sys.stderr.write('out of luck'); sys.stderr.flush(); os._exit(3)"
    with pytest.raises(RayinferError, match="its process has ended: out of luck"), open_with(answer=dying):
        pass


def test_answers_of_other_lengths_are_no_measurement(open_with):
    with pytest.raises(RayinferError, match="other lengths"), open_with(answer="return lengths[1:]"):
        pass


def test_an_engine_that_hangs_is_given_up_and_ended(open_with):
    with pytest.raises(RayinferError, match="no answer for 1 s"), open_with(timeout_s=1.0, answer="time.sleep(60)"):
        pass


def test_an_engine_at_rest_takes_no_processor_time(open_with, tmp_path):
    spinning = (
        "import os, threading\n    open('%s', 'w').write(str(os.getpid()))\n"
        "    threading.Thread(target=lambda: [None for _ in iter(int, 1)], daemon=True).start()" % (tmp_path / "pid")
    )
    with open_with(opening=spinning) as engine:
        pid = int((tmp_path / "pid").read_text())
        engine.pause()
        wait_until(lambda: _state(pid) == "T")
        before = _cpu_ticks(pid)
        time.sleep(0.2)
        assert _cpu_ticks(pid) == before
        engine.resume()
        assert engine.measure("prefill")["prefill"] > 0
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def _state(pid):
    return Path(f"/proc/{pid}/stat").read_text().split()[2]


def _cpu_ticks(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().split()[13])

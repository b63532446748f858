import dataclasses
import sys

import pytest

from rayinfer.benchmark.peers.server_process import measure_server, running_server
from rayinfer.errors import RayinferError
from support.fakes.fake_peers import make_server


def test_a_server_is_loaded_with_one_eight_and_thirty_two_streams(tmp_path):
    with running_server(make_server(tmp_path), tmp_path / "log") as server:
        figures = measure_server(server, "m", vocab_size=200)
        assert 0 < server.ready_s < 20
    expected = {f"{name}_{streams}" for name in ("http", "ttft_p50", "ttft_p99") for streams in (1, 8, 32)}
    assert set(figures) == expected
    assert all(value > 0 for value in figures.values())


def test_answers_that_are_too_short_are_no_measurement(tmp_path):
    with (
        running_server(make_server(tmp_path, missing_tokens=1), tmp_path / "log") as server,
        pytest.raises(RayinferError, match="gave 3 tokens instead of 4"),
    ):
        measure_server(server, "m", vocab_size=200)


def test_a_server_that_ends_at_once_shows_its_last_words(tmp_path):
    ending = [sys.executable, "-c", "raise SystemExit('no model')"]
    command = dataclasses.replace(make_server(tmp_path), arguments=ending)
    with (
        pytest.raises(RayinferError, match="its server has ended: no model"),
        running_server(command, tmp_path / "log"),
    ):
        pass


def test_a_server_that_is_never_ready_is_ended(tmp_path):
    command = dataclasses.replace(make_server(tmp_path), ready_path="/nowhere")
    with (
        pytest.raises(RayinferError, match="not ready in time"),
        running_server(command, tmp_path / "log", timeout_s=1.0),
    ):
        pass

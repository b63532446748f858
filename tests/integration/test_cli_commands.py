import json

import pytest

from support.faults.cli_processes import run_cli
from support.tiny_models.tiny_checkpoints import make_tiny_llama

ENGINE = ("--num-kv-blocks", 64, "--num-threads", 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(autouse=True)
def compiled_kernels(tmp_path, kernel_folder):
    """Let commands find the machine's kernels in their cache, instead of compiling them for half a minute each."""
    (tmp_path / "kernels").symlink_to(kernel_folder)


def test_generate_streams_an_answer_and_a_seed_repeats_it(model, tmp_path):
    arguments = ("generate", "Once upon", "--model", model, "--max-tokens", 8, "--seed", 5, *ENGINE)
    first, second = (run_cli(*arguments, cache=tmp_path) for _ in range(2))
    assert first.returncode == 0, first.stderr
    assert first.stdout.strip()
    assert first.stdout == second.stdout


def test_chat_answers_line_by_line_until_it_is_left(model, tmp_path):
    answer = run_cli("chat", model, "--max-tokens", 4, *ENGINE, cache=tmp_path, stdin="hello\nand you?\n/exit\n")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.count("> ") == 3


def test_the_offline_benchmark_writes_what_it_shows(model, tmp_path):
    file = tmp_path / "offline.json"
    lengths = ("--input-len", "4:8", "--output-len", "3:5", "--num-requests", 3, "--seed", 1)
    answer = run_cli(
        "bench", "offline", "--model", model, *lengths, "--repeat", 2, "--json", file, *ENGINE, cache=tmp_path
    )
    assert answer.returncode == 0, answer.stderr
    report = json.loads(file.read_text())
    assert report["num_requests"] == 3
    assert len(report["own"]["runs"]) == 2
    assert report["settings"]["num_kv_blocks"] == 64
    assert report["environment"]["versions"]["torch"]
    assert "output tokens/s" in answer.stdout


def test_a_setting_that_cannot_work_is_one_line(model, tmp_path):
    answer = run_cli("serve", model, "--block-size", 12, cache=tmp_path)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert "block_size" in line


def test_no_services_are_no_error(tmp_path):
    assert json.loads(run_cli("ps", "--json", cache=tmp_path).stdout) == []
    assert run_cli("ps", "--port", 9, cache=tmp_path).returncode == 1

import json
import os
import signal
import threading

import pytest
from typer.testing import CliRunner

from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.progress.lease import acquire_lease
from rayinfer_deployments.cli import build_application
from support.tiny_models.tiny_checkpoints import make_tiny_llama

ENGINE = ("--num-kv-blocks", "64", "--num-threads", "1", "--dtype", "float32", "--max-tokens", "4")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(make_tiny_llama(tmp_path_factory.mktemp("model")))


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"row {number}"}) + "\n" for number in range(6)) + "nothing\n")
    return path


def batch(*arguments):
    return CliRunner().invoke(build_application(), ["batch", *map(str, arguments)])


def test_a_job_runs_and_its_state_is_shown_and_verified(model, rows, tmp_path):
    output = tmp_path / "out.jsonl"
    assert batch("status", output).exit_code == 1
    run = batch("run", rows, output, "--model", model, *ENGINE)
    assert run.exit_code == 0, run.output
    assert "7 rows, 1 with errors" in run.stdout
    assert "first error: row 6" in run.stderr
    assert len(output.read_text().splitlines()) == 7
    assert batch("run", rows, output, "--model", model, *ENGINE).stdout.startswith("complete already: 7 rows")
    assert batch("status", output).stdout.startswith("complete: 7 rows")
    assert json.loads(batch("status", output, "--json").stdout)["state"] == "complete"
    assert batch("verify", rows, output).stdout.startswith("right: 7 rows")
    changed = batch("run", rows, output, "--model", model, *ENGINE, "--temperature", "0.5")
    assert changed.exit_code == 1
    assert "sampling" in changed.stderr
    output.write_text(output.read_text().replace("row 3", "row 4"))
    assert batch("verify", rows, output).exit_code == 1
    assert batch("cancel", output).exit_code == 1


def test_options_stand_over_a_file_of_settings(model, rows, tmp_path):
    settings = tmp_path / "job.yaml"
    settings.write_text(
        f"input: {rows}\noutput: {tmp_path / 'named.jsonl'}\nmodel: {model}\nkeep_columns: true\n"
        "sampling: {max_tokens: 2, ignore_eos: true}\nparameters: {base_seed: 4, max_errors: 50%}\n"
    )
    run = batch("run", settings, *ENGINE, "--only-output")
    assert run.exit_code == 0, run.output
    first = json.loads((tmp_path / "named.jsonl").read_text().splitlines()[0])
    assert list(first) == ["id", "text", "finish_reason", "usage", "error"]
    assert first["usage"]["completion_tokens"] == 4
    assert batch("verify", settings).exit_code == 0
    limited = batch("run", rows, tmp_path / "few.jsonl", "--model", model, *ENGINE, "--max-errors", "0")
    assert limited.exit_code == 1
    assert "1 of 7 rows have errors" in limited.stderr


def test_a_second_copy_is_refused_and_a_signal_stops_the_first_at_a_checkpoint(model, rows, tmp_path):
    output = tmp_path / "held.jsonl"
    with acquire_lease(ProgressFolder(f"{output}.progress"), "another copy"):
        refused = batch("run", rows, output, "--model", model, *ENGINE)
    assert refused.exit_code == 75
    assert f"process {os.getpid()}" in refused.stderr

    rows.write_text("".join(json.dumps({"prompt": f"row {number}"}) + "\n" for number in range(3000)))
    stopping = tmp_path / "stopped.jsonl"
    ended = threading.Event()

    def stop_when_it_writes() -> None:
        while not ended.wait(0.02):
            if any(tmp_path.glob("stopped.jsonl.progress/checkpoint-*")):
                os.kill(os.getpid(), signal.SIGTERM)
                return

    watcher = threading.Thread(target=stop_when_it_writes)
    watcher.start()
    stopped = batch("run", rows, stopping, "--model", model, *ENGINE, "--checkpoint-rows", "50")
    ended.set()
    watcher.join()
    assert stopped.exit_code == 130
    assert "the same command goes on from there" in stopped.stderr
    status = batch("status", stopping)
    assert status.stdout.startswith("stopped: ")
    assert status.exit_code == 1


def test_arguments_that_make_no_job_are_refused(rows, tmp_path):
    assert "name an output" in batch("run", rows).stderr
    assert "--address" in batch("run", rows, tmp_path / "out.jsonl", "--address", "auto").stderr
    assert batch("run", tmp_path / "absent.jsonl", tmp_path / "out.jsonl").exit_code == 1


def test_an_output_that_is_the_input_is_refused(rows, tmp_path):
    content = rows.read_bytes()
    for job_input, output in [
        (rows, rows),
        (tmp_path, tmp_path / "out.jsonl"),
        (tmp_path / "*.jsonl", tmp_path / "out.jsonl"),
        (rows, tmp_path),
    ]:
        refused = batch("run", job_input, output, "--output-format", "jsonl")
        assert refused.exit_code == 1
        assert "take another output" in refused.stderr
    assert rows.read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.gz", "out.sqlite", "parts.jsonl/"])
def test_an_output_of_others_is_kept_and_a_lost_one_noticed(model, rows, tmp_path, name):
    output, foreign = f"{tmp_path}/{name}", tmp_path / (f"{name}part-000000.jsonl" if name.endswith("/") else name)
    foreign.parent.mkdir(exist_ok=True)
    foreign.write_bytes(b"something else")
    refused = batch("run", rows, output, "--model", model, *ENGINE)
    assert refused.exit_code == 1
    assert "exists already" in refused.stderr
    assert foreign.read_bytes() == b"something else"
    foreign.unlink()
    assert batch("run", rows, output, "--model", model, *ENGINE).exit_code == 0
    foreign.unlink()
    lost = batch("run", rows, output, "--model", model, *ENGINE)
    assert lost.exit_code == 1
    assert "not there any more" in lost.stderr


def test_another_configuration_is_taken_before_the_first_checkpoint_and_never_once_complete(model, rows, tmp_path):
    output = tmp_path / "out.jsonl"
    assert batch("run", rows, output, "--model", model, *ENGINE, "--prompt-column", "absent").exit_code == 1
    assert batch("run", rows, output, "--model", model, *ENGINE).exit_code == 0
    again = ("run", rows, output, "--model", model, *ENGINE, "--temperature", "0.5", "--force-config")
    for _ in range(2):
        refused = batch(*again)
        assert refused.exit_code == 1
        assert "the job is complete, with another configuration" in refused.stderr
    assert batch("run", rows, output, "--model", model, *ENGINE).exit_code == 0


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ("engin: {}", (), "engin: there is no such setting, got {}; did you mean engine?"),
        (
            "parameters: {checkpointing: {period_row: 3}}",
            (),
            "checkpointing.period_row: there is no such setting, got 3",
        ),
        (
            "parameters: {profiling: {trace_dir: t}}",
            (),
            "profiling.trace_dir: there is no such setting, got 't'",
        ),
        ("engine: {dtyp: float32}", (), "dtyp: there is no such setting, got 'float32'; did you mean dtype?"),
        ("xylophone: 1", (), "xylophone: there is no such setting, got 1\n"),
        ("sampling: {temprature: 1}", (), "sampling: unknown names temprature; did you mean temperature?"),
        ("1: 2", (), "must hold names and values"),
        ("parameters: {checkpointing: [2]}", ("--checkpoint-rows", "2"), "checkpointing: must hold names and values"),
    ],
)
def test_unknown_settings_of_a_file_are_named_with_the_nearest_known_one(settings, options, message, rows, tmp_path):
    (tmp_path / "job.yaml").write_text(f"input: {rows}\noutput: {tmp_path / 'out.jsonl'}\n{settings}\n")
    run = batch("run", tmp_path / "job.yaml", *options)
    assert run.exit_code == 1
    assert message in run.stderr
    assert not (tmp_path / "out.jsonl.progress").exists()


def test_other_sampling_defaults_of_the_engine_are_another_configuration(model, rows, tmp_path):
    arguments = (rows, tmp_path / "out.jsonl", "--model", model, *ENGINE, "--override-generation-config")
    assert batch("run", *arguments, '{"temperature": 0.5}').exit_code == 0
    changed = batch("run", *arguments, '{"temperature": 0.9}')
    assert changed.exit_code == 1
    assert 'override_generation_config: {"temperature":0.5}, now {"temperature":0.9}' in changed.stderr

import contextlib
import io
import json

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from rayinfer.access.key_file import KeyFile
from rayinfer.access.usage import Usage, UsageKey, UsageRow, day_of
from rayinfer.access.usage_log import UsageLog, usage_log_path
from rayinfer_deployments.cli import build_application
from rayinfer_deployments.cli.failures import in_one_line
from rayinfer_deployments.cli.options.access_options import with_access_options
from rayinfer_deployments.cli.terminal import KeyFileReports
from rayinfer_deployments.cluster.service_record import recorded


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    return lambda *arguments: CliRunner().invoke(build_application(), arguments)


def test_keys_are_made_listed_and_revoked(run, tmp_path):
    made = run("keys", "new", "alice", "--weight", "2", "--model", "tiny", "--scope", "infer", "--scope", "metrics")
    assert made.exit_code == 0, made.output
    secret = made.stdout.strip()
    assert secret.startswith("ri-")
    (row,) = json.loads(run("keys", "list", "--json").stdout)
    assert (row["name"], row["weight"], row["limits"]["models"], row["last_used_s"]) == ("alice", 2, ["tiny"], None)
    assert "sha256" not in row
    assert secret not in run("keys", "list").stdout
    assert run("keys", "new", "alice").exit_code == 1
    assert run("keys", "revoke", "alice").exit_code == 0
    assert run("keys", "revoke", "alice").exit_code == 1
    assert "revoked" in run("keys", "list").stdout
    assert len(KeyFile(tmp_path / "api-keys.jsonl").read()) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["a b"], "name: must be 1 to 128 letters, digits and . _ : @ / -, got 'a b'"),
        (["a", "--weight", "0"], "weight: Input should be greater than or equal to 0.000001, got 0.0"),
        (["a", "--weight", "nan"], "weight: Input should be less than or equal to 1000000, got nan"),
        (["a", "--scope", "root"], "no scope 'root': choose infer, metrics, operate"),
        (["a", "--model", ""], "models.0: String should have at least 1 character, got ''"),
        (
            ["a", "--requests-per-minute", "-5"],
            "requests_per_minute: Input should be greater than or equal to 1, got -5",
        ),
        (["a", "--tokens-per-minute", "0"], "tokens_per_minute: Input should be greater than or equal to 1, got 0"),
        (["a", "--concurrent-requests", "0"], "concurrent_requests: Input should be greater than or equal to 1, got 0"),
        (["a", "--max-context", "1"], "max_context: Input should be greater than or equal to 2, got 1"),
        (["a", "--max-tokens", "0"], "max_tokens: Input should be greater than or equal to 1, got 0"),
        (["a", "--output-tokens-per-day", "0"], "output_tokens_per_day: Input should be greater than or equal to 1"),
        (
            ["a", "--most-urgent", "5", "--least-urgent", "1"],
            "limits: most_urgent 5 is above least_urgent 1: lower is more urgent",
        ),
        (["a", "--most-urgent", "-11"], "most_urgent: Input should be greater than or equal to -10, got -11"),
        (["a", "--least-urgent", "11"], "least_urgent: Input should be less than or equal to 10, got 11"),
        (["a", "--tenant", "x" * 200], "tenant: must be 1 to 128 letters"),
    ],
    ids=str,
)
def test_wrong_options_of_a_key_are_errors_in_one_line(run, options, said, tmp_path):
    failed = run("keys", "new", *options)
    assert failed.exit_code == 1
    assert failed.stderr.startswith(f"error: {said}")
    assert len(failed.stderr.splitlines()) == 1
    assert "(" not in failed.stderr  # no object's representation
    assert not (tmp_path / "api-keys.jsonl").exists()


def test_usage_is_shown_by_name_and_day(run, tmp_path):
    assert run("usage").exit_code == 1
    run("keys", "new", "alice")
    (key,) = KeyFile(tmp_path / "api-keys.jsonl").read()
    log = UsageLog(usage_log_path(tmp_path / "api-keys.jsonl"))
    log.record("router", 1, [UsageRow(UsageKey(day_of(), key.key_id, "tiny"), Usage(2, 30, 10, 4, 1800.0))])
    log.close()
    (row,) = json.loads(run("usage", "--json", "--price-per-engine-hour", "4").stdout)
    assert (row["key"], row["requests"], row["cached_tokens"], row["cost"]) == ("alice", 2, 10, 2.0)
    assert "alice  tiny  requests 2  tokens in 30 (cached 10), out 4" in run("usage").stdout
    assert json.loads(run("keys", "list", "--json").stdout)[0]["last_used_s"] is not None


@pytest.fixture
def serve(run):
    """A command with the options of `serve` that concern access, which only says which key file it got."""

    @in_one_line
    @with_access_options
    def serve(application_settings: dict[str, object] = {}) -> None:  # noqa: B006 - as in `serve`
        typer.echo(application_settings["api_keys"])

    application = typer.Typer()
    application.command()(serve)
    return lambda *arguments: CliRunner().invoke(application, [str(argument) for argument in arguments])


def test_a_service_does_not_start_with_a_key_file_that_is_missing_or_damaged(run, serve, tmp_path):
    missing, damaged = tmp_path / "missing.jsonl", tmp_path / "api-keys.jsonl"
    failed = serve("--api-keys", missing)
    assert (failed.exit_code, failed.stderr.splitlines()) == (
        1,
        [f"error: the key file {missing} is not there: make it with `rayinfer keys new NAME --file {missing}`"],
    )
    run("keys", "new", "alice")
    with damaged.open("a") as file:
        file.write('{"key_id": "b", "name": "b", "tenant": "b", "sha256": "00"}\n')
    for options in ([], ["--api-keys", damaged]):
        failed = serve(*options)
        assert failed.exit_code == 1
        assert failed.stderr.startswith(f"error: {damaged}, line 2: sha256: ")
        assert len(failed.stderr.splitlines()) == 1
    failed = serve("--api-keys", tmp_path)
    assert (failed.exit_code, "cannot read the keys" in failed.stderr) == (1, True)


def test_a_key_file_that_others_may_read_brings_a_warning(run, serve, tmp_path):
    run("keys", "new", "alice")
    path = tmp_path / "api-keys.jsonl"
    assert serve().stderr == ""
    path.chmod(0o644)
    started = serve()
    assert (started.exit_code, started.stdout.strip()) == (0, str(path))
    assert started.stderr == f"warning: the key file {path} is open to other users (mode 644): run chmod 600 {path}\n"


def test_the_terminal_says_when_the_key_file_is_damaged_and_mended(run, tmp_path):
    run("keys", "new", "alice")
    path, terminal = tmp_path / "api-keys.jsonl", io.StringIO()
    content, reports = path.read_text(), KeyFileReports(path, Console(file=terminal))
    reports.check()
    assert terminal.getvalue() == ""
    path.write_text(content + "{}\n")
    for _ in range(2):
        reports.check()
    (line,) = terminal.getvalue().splitlines()
    assert line.startswith(f"error: {path}, line 2: key_id: Field required")
    assert line.endswith("; the last API keys apply until it is mended")
    path.write_text(content)
    for _ in range(2):
        reports.check()
    assert terminal.getvalue().splitlines()[1:] == ["the API keys are valid again"]


@contextlib.contextmanager
def running(port, key_file):
    with recorded(
        host="127.0.0.1",
        port=port,
        models=["m"],
        ray_address="ray:1",
        owns_ray=True,
        application="rayinfer",
        key_file=None if key_file is None else str(key_file),
    ):
        yield


def test_keys_and_usage_are_those_of_the_running_service(run, tmp_path):
    default, own = tmp_path / "api-keys.jsonl", tmp_path / "own" / "keys.jsonl"
    assert f"made {default}" in run("keys", "new", "alice").stderr
    assert f"made {own}" in run("keys", "new", "bob", "--file", str(own)).stderr
    log = UsageLog(usage_log_path(own))
    log.record("router", 1, [UsageRow(UsageKey(day_of(), KeyFile(own).read()[0].key_id, "tiny"), Usage(2))])
    log.close()
    with running(8000, own), running(8001, None):
        assert f"added to {own}" in run("keys", "new", "carol").stderr
        assert f"2 keys in {own}" in run("keys", "list").stdout
        listed = run("keys", "list", "--json")
        assert ([row["name"] for row in json.loads(listed.stdout)], str(own) in listed.stderr) == (
            ["bob", "carol"],
            True,
        )
        assert str(usage_log_path(own)) in run("usage").stdout
        assert (json.loads(run("usage", "--json").stdout)[0]["key"], run("usage", "--json").exit_code) == ("bob", 0)
        assert str(own) in run("keys", "revoke", "carol").stdout
        assert f"1 keys in {default}" in run("keys", "list", "--file", str(default)).stdout
        with running(8002, default):
            failed = run("keys", "list")
            assert (failed.exit_code, "--file" in failed.stderr, str(own) in failed.stderr) == (1, True, True)
    assert f"1 keys in {default}" in run("keys", "list").stdout


def test_the_help_names_every_protocol_and_says_where_keys_are_looked_for(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    for protocol in ("OpenAI", "TGI", "KServe v1 and v2", "Megatron", "gRPC"):
        assert protocol in run("serve", "--help").stdout
    for command in (("keys", "list"), ("usage",)):
        assert "default: that of the running service" in run(*command, "--help").stdout

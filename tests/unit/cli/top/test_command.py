import json
import time
from dataclasses import replace
from itertools import islice

import pytest
from fastapi import FastAPI, Response
from typer.testing import CliRunner

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.outputs import EngineStats
from rayinfer.servers.app import build_app
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer_deployments.cli import build_application
from rayinfer_deployments.cli.top import command
from support.fakes.fake_generator import FakeGenerator
from support.services.served_application import served
from support.tiny_models.tiny_checkpoints import save_tokenizer

HOSTILE = "\x1b[2J\u202e<b>[red]"
ENGINE = EngineStats(num_running=3, num_waiting=1, kv_blocks_used=10, kv_blocks_cached=20, kv_blocks_total=40)


@pytest.fixture
def model(tmp_path):
    save_tokenizer(tmp_path, 384)
    return ServedModel(
        name="tiny",
        generator=FakeGenerator(engines={"engine-1": ENGINE}),
        tokenizer=Tokenizer.from_folder(tmp_path),
        chat_template=ChatTemplate.from_folder(tmp_path),
        created=0,
    )


def run(*arguments, columns=140):
    return CliRunner().invoke(build_application(), ["top", *arguments], env={"COLUMNS": str(columns)})


def test_figures_of_a_service_are_printed_once(model):
    metrics = ServiceMetrics()
    metrics.queued_by("tiny")["alice", 2] = 5
    with served(build_app({"tiny": model}, metrics)) as url:
        shown = run("--base-url", f"{url}/v1", "--once")
    assert shown.exit_code == 0, shown.output
    for part in ("tiny", "ready", "engine-1", "10 used, 20 cached, 10 free", "5 of alice at priority 2"):
        assert part in shown.output


def test_names_of_engines_differ_in_eighty_columns(model):
    engines = {f"rayinfer-engine-{end}": replace(ENGINE, kv_blocks_total=5825) for end in ("fqeus0bj", "pccnm3j2")}
    with served(build_app({"tiny": replace(model, generator=FakeGenerator(engines=engines))}, ServiceMetrics())) as url:
        shown = run("--base-url", url, "--once", columns=80).output
    for end in ("fqeus0bj", "pccnm3j2"):
        line = next(line for line in shown.splitlines() if f"…{end}" in line)
        assert line.split()[2] == "running"
        assert "10+20 of 5825" in line


def test_names_of_others_are_plain_text(model):
    hostile = replace(model, name=HOSTILE, generator=FakeGenerator(engines={HOSTILE: ENGINE}, not_ready=HOSTILE))
    with served(build_app({HOSTILE: hostile}, ServiceMetrics())) as url:
        shown = run("--base-url", url).output
    assert "\\u001b[2J\\u202e<b>[red]" in shown
    assert not {"\x1b", "\u202e"} & set(shown)


def test_a_tenant_named_as_a_script_is_plain_text(model):
    metrics = ServiceMetrics()
    metrics.queued_by("tiny")["\x1b]0;<script>alert(1)</script>\x07\u202e", 2] = 5
    with served(build_app({"tiny": model}, metrics)) as url:
        shown = run("--base-url", url, "--once").output
    assert "5 of \\u001b]0;<script>alert(1)</script>\\u0007\\u202e at priority 2" in shown
    assert not {"\x1b", "\x07", "\u202e"} & set(shown)


def test_a_name_of_a_megabyte_is_cut(model):
    name = "A" * 1_000_000
    long = replace(model, name=name, generator=FakeGenerator(engines={name: ENGINE}, not_ready=name))
    metrics = ServiceMetrics()
    metrics.queued_by(name)[name, 0] = 1
    with served(build_app({name: long}, metrics)) as url:
        shown = run("--base-url", url, "--once")
    assert (shown.exit_code, "AAA…" in shown.output) == (0, True)
    assert len(shown.output) < 10_000


def test_a_service_that_restarts_is_asked_again():
    app, answers = FastAPI(), iter([503, 429, 200, 200])

    @app.get("/live")
    def live() -> Response:
        status = next(answers)
        sample = {"time_s": time.time(), "models": {}}
        return Response(f"data: {json.dumps(sample)}\n\n" if status == 200 else "", status)

    with served(app) as url:
        found = list(islice(command.follow(url, None), 4))
    assert found[:2] == [f"the service answers {status}; connecting again" for status in (503, 429)]
    assert [each["models"] for each in found[2:]] == [{}, {}]


def test_a_service_that_refuses_or_is_away_is_an_error(model):
    with served(build_app({"tiny": model}, ServiceMetrics())) as url:
        refused = run("--base-url", f"{url}/nothing", "--once")
    assert (refused.exit_code, "answers 404" in refused.output) == (1, True)
    away = run("--base-url", url, "--once")
    assert (away.exit_code, "error: " in away.output) == (1, True)

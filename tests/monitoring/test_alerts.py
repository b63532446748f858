"""Every alert fires when it should, and not otherwise, as promtool computes it."""

import subprocess
from pathlib import Path

import pytest
import yaml

from rayinfer_deployments.monitoring.alerts import alerts
from rayinfer_deployments.monitoring.monitoring_files import monitoring_files
from rayinfer_deployments.monitoring.objectives import Objectives

pytestmark = pytest.mark.dashboards

OBJECTIVES = Objectives(ttft_s=1, ttft_target=0.95, itl_s=0.1, itl_target=0.99, success_target=0.999)
MODEL = 'job="rayinfer", instance="a", model_name="m", router="r1"'
LONG = 510  # minutes: the windows of six hours are full
ENDED = f'vllm:request_success_total{{{MODEL}, finished_reason="stop"}}'
FIRST_GOOD = f'vllm:time_to_first_token_seconds_bucket{{{MODEL}, le="1.0"}}'
FIRST_ALL = f"vllm:time_to_first_token_seconds_count{{{MODEL}}}"
NEXT_GOOD = f'vllm:inter_token_latency_seconds_bucket{{{MODEL}, le="0.1"}}'
NEXT_ALL = f"vllm:inter_token_latency_seconds_count{{{MODEL}}}"
ENGINES = f'rayinfer_engines{{{MODEL}, state="running"}}'
LOST = f"rayinfer_engines_lost_total{{{MODEL}}}"
WAITING = f'vllm:num_requests_waiting{{{MODEL}, engine="router"}}'
MIGRATIONS = f"rayinfer_migrations_total{{{MODEL}}}"
REJECTED = f'vllm:admission_rejections_total{{{MODEL}, reason="queue_full"}}'
FAILED = f'vllm:request_success_total{{{MODEL}, finished_reason="error"}}'
ENGINE = 'job="rayinfer", instance="a", model_name="m", engine="e1"'
KV_USED = f"vllm:kv_cache_usage_perc{{{ENGINE}}}"
PREEMPTED = f"vllm:num_preemptions_total{{{ENGINE}}}"
OF_ROUTER = 'job="rayinfer", instance="a", router="r1"'
INFO = f"rayinfer_router_info{{{OF_ROUTER}}}"
KEYS = f"rayinfer_key_file_valid{{{OF_ROUTER}}}"
ROWS_WAITING = f"rayinfer_batch_rows_waiting{{{OF_ROUTER}}}"
ROWS_DONE = f'rayinfer_batch_rows_total{{{OF_ROUTER}, outcome="completed"}}'
BREAKER = f'rayinfer_prediction_cache_breaker_state{{{OF_ROUTER}, state="open"}}'
UP = 'up{job="rayinfer", instance="a"}'
UP_OF_ANOTHER = 'up{job="rayinfer", instance="b"}'

# A stream a second, all in time; two engines, none lost; nothing waits.
HEALTHY = {
    UP: "1x600",
    INFO: "1x600",
    ENDED: "0+60x600",
    FAILED: "0x600",
    FIRST_GOOD: "0+60x600",
    FIRST_ALL: "0+60x600",
    NEXT_GOOD: "0+1000x600",
    NEXT_ALL: "0+1000x600",
    ENGINES: "2x600",
    LOST: "0x600",
    WAITING: "0x600",
    MIGRATIONS: "0x600",
    KV_USED: "0.5x600",
    PREEMPTED: "0x600",
    KEYS: "1x600",
    ROWS_WAITING: "0x600",
    ROWS_DONE: "0x600",
    BREAKER: "0x600",
}
# name: what differs from a healthy service, the minute, and what fires then.
CASES: dict[str, tuple[dict[str, str | None], int, set[str]]] = {
    "healthy": ({}, LONG, set()),
    "first tokens very late": (
        {FIRST_GOOD: "0+12x600"},
        LONG,
        {"FirstTokenBurnRate 1h", "FirstTokenBurnRate 6h", "FirstTokenBurnRate 3d", "FirstTokenBudgetLow"},
    ),
    "first tokens late": (
        {FIRST_GOOD: "0+36x600"},
        LONG,
        {"FirstTokenBurnRate 6h", "FirstTokenBurnRate 3d", "FirstTokenBudgetLow"},
    ),
    "first tokens a little late": (
        {FIRST_GOOD: "0+55x600"},
        LONG,
        {"FirstTokenBurnRate 3d", "FirstTokenBudgetLow"},
    ),
    "first tokens within the objective": ({FIRST_GOOD: "0+58x600"}, LONG, set()),
    "first tokens late until an hour ago": (
        {FIRST_GOOD: "0x20 0+60x580", FIRST_ALL: "0+60x20 1200+60x580"},
        100,
        {"FirstTokenBurnRate 3d", "FirstTokenBudgetLow"},
    ),
    "few streams": ({ENDED: "0+0.2x600", FIRST_GOOD: "0x600", FIRST_ALL: "0+0.2x600"}, 50, set()),
    "tokens very late": (
        {NEXT_GOOD: "0+800x600"},
        LONG,
        {"InterTokenBurnRate 1h", "InterTokenBurnRate 6h", "InterTokenBurnRate 3d", "InterTokenBudgetLow"},
    ),
    "tokens late": (
        {NEXT_GOOD: "0+920x600"},
        LONG,
        {"InterTokenBurnRate 6h", "InterTokenBurnRate 3d", "InterTokenBudgetLow"},
    ),
    "tokens a little late": ({NEXT_GOOD: "0+970x600"}, LONG, {"InterTokenBurnRate 3d", "InterTokenBudgetLow"}),
    "tokens within the objective": ({NEXT_GOOD: "0+995x600"}, LONG, set()),
    "many failures": (
        {FAILED: "0+3x600"},
        LONG,
        {"FailureBurnRate 1h", "FailureBurnRate 6h", "FailureBurnRate 3d", "FailureBudgetLow"},
    ),
    "failures": ({FAILED: "0+0.6x600"}, LONG, {"FailureBurnRate 6h", "FailureBurnRate 3d", "FailureBudgetLow"}),
    "some failures": ({FAILED: "0+0.2x600"}, LONG, {"FailureBurnRate 3d", "FailureBudgetLow"}),
    "few failures": ({FAILED: "0+0.03x600"}, LONG, set()),
    "rejections": (
        {REJECTED: "0+10x600"},
        60,
        {"Rejections", "FailureBurnRate 1h", "FailureBurnRate 6h"},
    ),
    "both engines lost": (
        {ENGINES: "2x30 0x570", LOST: "0x30 2x570"},
        37,
        {"ModelWithoutEngine", "EngineNotReplaced"},
    ),
    "requests wait for the first engine": ({ENGINES: "0x600", WAITING: "1x600"}, 10, {"ModelWithoutEngine"}),
    "no engine is wanted": ({ENGINES: "0x600"}, 10, set()),
    "an engine lost": ({ENGINES: "2x30 1x570", LOST: "0x30 1x570"}, 37, {"EngineNotReplaced"}),
    "an engine replaced": ({ENGINES: "2x30 1x2 2x570", LOST: "0x30 1x570"}, 40, set()),
    "engines scaled down": ({ENGINES: "2x30 1x570"}, 40, set()),
    "engines crash": ({LOST: "0x30 1x2 2x2 3x570"}, 40, {"EnginesCrash"}),
    "many migrations": ({MIGRATIONS: "0+10x600"}, 30, {"ManyMigrations"}),
    "migrations of few streams": ({MIGRATIONS: "0+2x600"}, 30, set()),
    "the queue grows": ({WAITING: "0+5x600"}, 30, {"QueueGrows"}),
    "the queue stays": ({WAITING: "50x600"}, 30, set()),
    "memory is short": ({KV_USED: "0.97x600", PREEMPTED: "0+2x600"}, 30, {"KvPressure"}),
    "memory is full without preemptions": ({KV_USED: "0.97x600"}, 30, set()),
    "batches stall": ({ROWS_WAITING: "5x600"}, 90, {"BatchesStall"}),
    "batches advance": ({ROWS_WAITING: "5x600", ROWS_DONE: "0+1x600"}, 90, set()),
    "no router": ({INFO: None}, 10, {"ServiceDown"}),
    "a target is down": ({UP_OF_ANOTHER: "0x600"}, 10, {"TargetDown"}),
    "keys cannot be read": ({KEYS: "0x600"}, 10, {"KeyFileInvalid"}),
    "redis is away": ({BREAKER: "1x600"}, 30, {"PredictionCacheCut"}),
}


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "rules.yaml"
    file.write_text(monitoring_files(OBJECTIVES)["alerts/rayinfer.rules.yaml"])
    return file


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def labels_of(firing: str) -> str:
    name, _, window = firing.partition(" ")
    severities = {alert.severity for alert in alerts() if (alert.name, alert.window) == (f"Rayinfer{name}", window)}
    (severity,) = severities
    kept = {"alertname": f"Rayinfer{name}", "severity": severity} | ({"window": window} if window else {})
    return "{" + ", ".join(f'{label}="{value}"' for label, value in kept.items()) + "}"


def test_promtool_accepts_the_rules(rules: Path):
    assert "46 rules found" in promtool("check", "rules", rules)


def test_every_alert_has_a_case_in_which_it_fires():
    fired = {labels_of(name) for _, _, expected in CASES.values() for name in expected}
    names = [alert.name.removeprefix("Rayinfer") + (f" {alert.window}" if alert.window else "") for alert in alerts()]
    assert {labels_of(name) for name in names} == fired


@pytest.mark.parametrize("case", CASES)
def test_exactly_these_alerts_fire(case: str, rules: Path, tmp_path: Path):
    changes, minute, expected = CASES[case]
    series = {name: values for name, values in (HEALTHY | changes).items() if values is not None}
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname, severity, window) (ALERTS{alertstate="firing"})',
                "eval_time": f"{minute}m",
                "exp_samples": [{"labels": labels_of(name), "value": 1} for name in sorted(expected)],
            }
        ],
    }
    file = tmp_path / "tests.yaml"
    interval = "1m" if minute < LONG else "5m"
    file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": interval, "tests": [test]}))
    promtool("test", "rules", file)

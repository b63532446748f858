"""The Helm chart makes the same objects as kustomize, and refuses values that it does not know."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayinfer_deployments.kubernetes.helm_files import helm_files
from rayinfer_deployments.kubernetes.kustomize_files import overlaid
from rayinfer_deployments.kubernetes.manifests import manifests
from support.kubernetes.kubernetes_tools import K8S, TOOLS, objects_in, run_tool
from support.kubernetes.manifest_rules import manifest_mistakes
from support.kubernetes.refused_services import REFUSED, SMALL

pytestmark = pytest.mark.k8s

CHART = K8S / "helm" / "rayinfer"


def template(*values: Path) -> list[dict[str, Any]]:
    options = [option for file in values for option in ("--values", str(file))]
    return objects_in(run_tool("helm", "template", "release", CHART, *options))


def comparable(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """Index manifests by kind and name, with Serve's configuration as a mapping."""
    indexed = {}
    for manifest in objects:
        if config := manifest.get("spec", {}).get("serveConfigV2"):
            manifest = manifest | {"spec": manifest["spec"] | {"serveConfigV2": yaml.safe_load(config)}}
        indexed[f"{manifest['kind']} {manifest['metadata']['name']}"] = manifest
    assert len(indexed) == len(objects)
    return indexed


def test_helm_and_kustomize_make_the_same_objects(rendered: dict[str, list[dict[str, Any]]]) -> None:
    for overlay, objects in rendered.items():
        values = [] if overlay == "base" else [K8S / "helm" / "values" / f"{overlay}.yaml"]
        assert comparable(template(*values)) == comparable(objects), overlay


def test_helm_lint_accepts_every_overlay() -> None:
    for values in sorted((K8S / "helm" / "values").iterdir()):
        run_tool("helm", "lint", "--strict", CHART, "--values", values)


@pytest.mark.parametrize("setting", ["routres=2", "workers[0].gpu=1", "app.request_timeout=3", "upgrade.strategy=Blue"])
def test_unknown_values_are_refused(setting: str) -> None:
    done = subprocess.run(
        [TOOLS / "helm", "template", "release", CHART, "--set", setting], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert setting.partition("=")[0].rpartition(".")[2] in done.stderr


ODD_SERVICES = {
    "bucket": {"storage": {"kind": "bucket", "csi_driver": "gcsfuse.csi.storage.gke.io", "csi_attributes": {"b": "c"}}},
    "claim": {"storage": {"kind": "pvc", "claim": "weights"}, "name": "other", "image_pull_secrets": ["registry"]},
    "claim-of-a-class": {"storage": {"kind": "pvc", "storage_class": "fast"}, "grpc": False, "network_policy": {}},
    "redis": {
        "high_availability": {"redis_address": "redis.example:6380"},
        "network_policy": {"egress_cidrs": [], "client_namespaces": []},
        "profile": "throughput",
        "limits": {"stream_interval": 8, "tenants": {"a": {"weight": 2}}},
    },
    "own-redis": {"high_availability": {}, "network_policy": {}, "auth": {}, "autoscale_pods": True},
    "groups": {
        "head": {"cpus": 4, "node_selector": {"pool": "head"}},
        "workers": [
            {"name": "a", "pods": 0, "max_pods": 3, "node_selector": {"pool": "a"}},
            {"name": "b", "gpus": 8, "spread_over": "topology.kubernetes.io/zone", "spread_strictly": True},
        ],
    },
    "drain": {"app": {"models": [{"model": "a", "drain_timeout_s": 7.5}, {"model": "b", "drain_timeout_s": 900}]}},
    "job": {
        "batch": {"input": "s3://b/in.jsonl", "output": "s3://b/out.jsonl", "prompt_template": "It's {text}"},
        "queue": {"gpus": 2, "node_labels": {"gpu": "h100"}},
        "storage": {"kind": "init", "init_command": ["hf", "download", "a/b"]},
    },
    "kserve": {
        "kserve": {"storage_uri": "s3://b/m", "min_replicas": 0},
        "auth": {},
        "workers": [{"name": "a", "gpus": 1}],
    },
    "job-of-a-week": {
        "batch": {"input": "/data/a", "output": "/data/b", "deadline_s": 1_000_000, "ttl_s": 2_000_000},
        "app": {"models": [{"model": "/models/my model", "deterministic": True, "max_model_len": 1_000_000}]},
    },
    "job-behind-a-policy": {"batch": {"input": "/data/a", "output": "/data/b"}, "network_policy": {}},
    "kserve-settings": {
        "kserve": {},
        "app": {
            "models": [{"model": "/models/it's.gguf", "num_replicas": 2, "enforce_eager": False, "dtype": "float32"}],
            "request_timeout_s": 90.5,
        },
        "workers": [{"name": "a", "gpus": 1, "node_selector": {"pool": "a"}}],
        "image_pull_secrets": ["registry"],
    },
    "monitoring": {
        "name": "y",
        "monitoring": {
            "objectives": {"ttft_s": 2.5, "itl_s": 1, "success_target": 0.9999},
            "labels": {"app.kubernetes.io/component": "prometheus"},
            "metrics_key_secret": "metrics-key",
            "interval_s": 5,
        },
    },
    "environment": {
        "env": {"B": "1e3", "A": "it's 'x'"},
        "env_secrets": ["hub", "other"],
        "auth": {},
        "storage": {"kind": "init", "init_command": ["hf", "download", "a/b"]},
    },
    "machines": {
        "head": {"tolerations": [{"operator": "Exists"}], "priority_class": "high", "runtime_class": "gvisor"},
        "workers": [
            {"name": "a", "tolerations": [{"key": "n/spot", "value": "1", "effect": "NoExecute", "seconds": 0}]},
            {"name": "b", "gpus": 1, "runtime_class": "nvidia", "tolerations": [{"key": "a", "operator": "Exists"}]},
        ],
    },
    "kserve-machines": {
        "kserve": {},
        "env": {"A": "b"},
        "env_secrets": ["hub"],
        "workers": [{"name": "a", "gpus": 1, "priority_class": "high", "tolerations": [{"key": "a", "value": "b"}]}],
    },
    "job-machines": {
        "batch": {"input": "/data/a", "output": "/data/b"},
        "head": {"node_selector": {"pool": "a"}, "tolerations": [{"key": "a"}]},
        "image_pull_secrets": ["registry"],
    },
    "apart": {
        "engines_apart": True,
        "app": {
            "models": [{"model": "a", "num_replicas": 2}, {"model": "b", "autoscaling": {"max_replicas": 2}}],
            "router_on_every_node": True,
        },
        "workers": [{"name": "a", "pods": 2}],
    },
    "batches": {
        "app": {"models": [{"model": "a"}], "batches_folder": "/batches"},
        "storage": {"batches_claim": "batches"},
    },
    "batches-with-models": {
        "app": {"models": [{"model": "a"}], "batches_folder": "/home/rayinfer/batches"},
        "storage": {"kind": "pvc"},
    },
    "batches-in-the-pod": {"app": {"models": [{"model": "a"}], "batches_folder": "/tmp/batches"}},
    "picker-and-keys": {
        "auth": {},
        "app": {"models": [{"model": "a"}], "open_load_metrics": True},
        "ingress": {"gateway": "g", "inference_pool": True},
    },
    "route": {
        "ingress": {"gateway": "g", "gateway_namespace": "n"},
        "name": "y",
        "image": "1e3",
        "upgrade": {"strategy": "None"},
    },
}


@pytest.mark.parametrize("name", sorted(ODD_SERVICES))
def test_both_agree_on_every_setting(name: str, tmp_path: Path) -> None:
    for path, text in helm_files(SMALL, {name: ODD_SERVICES[name]}).items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    done = run_tool("helm", "template", "r", tmp_path / "helm/rayinfer", "-f", tmp_path / f"helm/values/{name}.yaml")
    expected = manifests(overlaid(SMALL, ODD_SERVICES[name]))
    assert comparable(objects_in(done)) == comparable(expected)
    assert [mistake for manifest in expected for mistake in manifest_mistakes(manifest, tmp_path)] == []


@pytest.fixture(scope="module")
def small_chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    for path, text in helm_files(SMALL, {}).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder / "helm/rayinfer"


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_the_chart_refuses_what_build_refuses(changes: dict[str, Any], message: str, small_chart: Path) -> None:
    values = small_chart.parent / "values.yaml"
    values.write_text(yaml.safe_dump(changes))
    done = subprocess.run(
        [TOOLS / "helm", "template", "r", small_chart, "-f", values], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0, "the chart takes it"
    if not any(words in done.stderr for words in ("specifications of the schema", "failed to parse")):
        assert re.search(message, done.stderr), done.stderr


def test_false_and_zero_override_the_defaults(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    ingress = {"gateway": "g", "inference_pool": True, "picker_fails_open": False}
    values.write_text(yaml.safe_dump({"ingress": ingress, "kserve": None}))
    (pool,) = [manifest for manifest in template(values) if manifest["kind"] == "InferencePool"]
    assert pool["spec"]["endpointPickerRef"]["failureMode"] == "FailClose"

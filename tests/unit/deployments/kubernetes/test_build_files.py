"""`rayinfer build`: the manifests in git are its output, and mistakes in its file are named."""

import shlex
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from rayinfer.errors import ConfigError
from rayinfer_deployments.cli import build_application
from rayinfer_deployments.config_check import mistakes_in
from rayinfer_deployments.kubernetes.build_files import BUILT_IN_OVERLAYS, changed_files, service_files, write_files
from rayinfer_deployments.kubernetes.kustomize_files import merge_patch, merged
from rayinfer_deployments.kubernetes.manifests import manifests
from rayinfer_deployments.kubernetes.service_file import service_of
from rayinfer_deployments.kubernetes.setting_types import in_bytes
from support.kubernetes.refused_services import REFUSED, SMALL

K8S = Path(__file__).parents[4] / "k8s"
ANY_WORKER = {
    "app.kubernetes.io/name": "rayinfer",
    "app.kubernetes.io/instance": "rayinfer",
    "app.kubernetes.io/component": "worker",
}


def test_committed_manifests_equal_a_new_build() -> None:
    changed = changed_files(service_files(K8S / "service.yaml").texts, K8S)
    assert not changed, f"`make manifests` writes k8s/ anew, which lacks: {', '.join(changed)}"


def test_written_files_replace_those_of_earlier_builds(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "left-over.yaml").write_text("kind: Pod\n")
    (tmp_path / "README.md").write_text("mine\n")
    files = service_files(K8S / "service.yaml").texts
    assert write_files(files, tmp_path) == len(files) + 1
    assert changed_files(files, tmp_path) == []
    assert (tmp_path / "README.md").read_text() == "mine\n"
    assert mistakes_in(tmp_path / "serve-config.yaml") == []


SERVICES = {
    "gpu": {"app": {"models": [{"model": "m", "num_gpus": 1}]}, "workers": [{"name": "a", "gpus": 1, "cpus": 8}]},
    "monitoring": {"monitoring": {}},
    "autoscale_pods": {"autoscale_pods": True},
    "job": {"batch": {"input": "/data/a", "output": "/data/b"}},
    "kserve": {"kserve": {}},
    "init": {"storage": {"kind": "init", "init_command": ["hf", "download", "a"]}},
}


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("gpu", ["queue"]),
        ("monitoring", []),
        ("autoscale_pods", []),
        ("job", ["gpu", "ha", "monitoring", "gateway"]),
        ("kserve", ["gpu-tp2", "multi-node", "ha", "incremental-upgrade", "monitoring", "gateway", "queue"]),
        ("init", ["gpu", "gpu-tp2", "kserve"]),
    ],
)
def test_a_service_gets_the_built_in_overlays_that_fit_it(name: str, left_out: list[str], tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(merged(SMALL, SERVICES[name])))
    built = service_files(file)
    assert [reason.split()[1].rstrip(":") for reason in built.left_out] == left_out
    folders = {path.split("/")[1] for path in built.texts if path.startswith("overlays/")}
    assert folders == set(yaml.safe_load(BUILT_IN_OVERLAYS.read_text())) - set(left_out)


def test_features_keep_the_models_of_the_service(tmp_path: Path) -> None:
    file = tmp_path / "service.yaml"
    file.write_text(yaml.safe_dump(merged(SMALL, SERVICES["gpu"])))
    texts = service_files(file).texts
    for name in ("ha", "incremental-upgrade"):
        patch = yaml.safe_load(texts[f"overlays/{name}/patch-rayservice-rayinfer.yaml"])
        (group,) = patch["spec"]["rayClusterConfig"]["workerGroupSpecs"]
        assert group["groupName"] == "a"
        assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    config = yaml.safe_load(
        yaml.safe_load(texts["overlays/ha/patch-rayservice-rayinfer.yaml"])["spec"]["serveConfigV2"]
    )
    assert config["applications"][0]["args"]["models"] == [
        {"model": "m", "num_gpus": 1, "num_replicas": 2, "resources": {"engine-0": 1}}
    ]


@pytest.mark.parametrize(
    ("overlays", "message"),
    [
        ({"a": {"routers": 0}}, "overlays.yaml: overlay a: routers: Input should be greater"),
        ({"../a": {}}, "overlays.yaml: overlay ../a: the name of a folder"),
        ({"a": 1}, "overlays.yaml: overlay a: settings: Input should be a valid dictionary"),
    ],
)
def test_overlays_of_the_user_must_fit(overlays: dict[str, object], message: str, tmp_path: Path) -> None:
    file = tmp_path / "overlays.yaml"
    file.write_text(yaml.safe_dump(overlays))
    with pytest.raises(ConfigError, match=message):
        service_files(K8S / "service.yaml", file)


NO_NETWORK = ({"network_policy": {"egress_cidrs": ["10.0.0.300/8"]}}, "egress_cidrs: 10.0.0.300/8 is no network")


@pytest.mark.parametrize(("changes", "message"), [*REFUSED, NO_NETWORK])
def test_mistakes_are_named_with_their_field(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        service_of(merged(SMALL, changes))


def test_merge_patches_lead_from_one_to_the_other() -> None:
    before = {"a": {"b": 1, "c": [1]}, "d": 2}
    after = {"a": {"b": 1, "e": {}}, "d": 3}
    assert merged(before, merge_patch(before, after)) == after


def test_pods_outlive_the_longest_drain() -> None:
    model = {"model": "smollm2-135m", "drain_timeout_s": 600}
    service = service_of(merged(SMALL, {"app": {"models": [model]}}))
    group = manifests(service)[-1]["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert group["template"]["spec"]["terminationGracePeriodSeconds"] > 600


def test_jobs_and_kserve_keep_the_settings_of_the_engine() -> None:
    engine = {
        "quantization": "int8",
        "enforce_eager": False,
        "kv_cache_memory_bytes": 4294967296,
        "memory_fraction": None,
    }
    model = {"model": "/models/my model", "num_replicas": 2, **engine, "override_generation_config": {"top_p": 0.5}}
    options = ["--no-enforce-eager", "--kv-cache-memory-bytes", "4294967296", "--override-generation-config"]
    options += ['{"top_p":0.5}', "--quantization", "int8"]
    files = {"input": "/data/a", "output": "/data/b"}
    service = merged(SMALL, {"app": {"models": [model], "request_timeout_s": 90}, "batch": files})
    (job,) = manifests(service_of(service))
    words = shlex.split(job["spec"]["entrypoint"])
    assert words[: words.index("--address")] == [
        *("rayinfer", "batch", "run", "/data/a", "/data/b", "--model", "/models/my model", "--workers", "2")
    ]
    assert words[-len(options) :] == options
    runtime, _ = manifests(service_of(service | {"batch": None, "kserve": {"storage_uri": "s3://b/m"}, "name": "llm"}))
    arguments = runtime["spec"]["containers"][0]["args"]
    assert arguments[:5] == ["rayinfer", "serve", "/mnt/models", "--name", "llm"]
    assert arguments[-len(options) :] == options
    assert "--replicas 2 --shutdown-grace 120 --request-timeout 90" in " ".join(arguments)
    for command in (words, arguments):
        _parse(command)


def _parse(words: list[str]) -> None:
    """Have the command take its options, without running it; it exits where it knows one of them not."""
    command = get_command(build_application())
    rest = words[1:]
    while commands := getattr(command, "commands", None):
        command, rest = commands[rest[0]], rest[1:]
    command.make_context("rayinfer", list(rest))


@pytest.mark.parametrize(
    ("groups", "least"),
    [([{}], 0), ([{"pods": 3}], 2), ([{"pods": 2, "min_pods": 1, "max_pods": 4}, {"name": "b", "pods": 2}], 2)],
)
def test_the_disruption_budget_is_a_number_of_pods_that_needs_no_scale_of_rayclusters(groups, least) -> None:
    service = service_of(merged(SMALL, {"workers": [{"name": "a"} | group for group in groups]}))
    assert manifests(service)[0]["spec"] == {"minAvailable": least, "selector": {"matchLabels": ANY_WORKER}}


def test_the_pod_that_submits_a_job_reaches_the_head() -> None:
    batch = {"input": "/data/a", "output": "/data/b"}
    policy, job = manifests(service_of(merged(SMALL, {"batch": batch, "network_policy": {}})))
    (allowed,) = [rule["from"][0] for rule in policy["spec"]["ingress"] if "ports" not in rule]
    labels = job["spec"]["submitterPodTemplate"]["metadata"]["labels"]
    assert allowed["podSelector"]["matchLabels"].items() <= labels.items()


def test_kserve_s_pods_go_to_the_machines_of_the_workers() -> None:
    workers = [{"name": "a", "gpus": 1, "node_selector": {"pool": "gpu"}}]
    runtime, _ = manifests(service_of(merged(SMALL, {"kserve": {}, "workers": workers, "image_pull_secrets": ["r"]})))
    assert runtime["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert runtime["spec"]["tolerations"][0]["key"] == "nvidia.com/gpu"
    assert runtime["spec"]["imagePullSecrets"] == [{"name": "r"}]


def test_the_store_of_ray_s_objects_fits_the_shared_memory() -> None:
    cluster = manifests(service_of(SMALL))[-1]["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (shared,) = [each for each in group["template"]["spec"]["volumes"] if each["name"] == "shared-mem"]
        assert int(group["rayStartParams"]["object-store-memory"]) < in_bytes(shared["emptyDir"]["sizeLimit"])


def test_the_autoscaler_beside_the_head_has_the_rights_of_other_containers() -> None:
    group = {"name": "a", "pods": 1, "max_pods": 2}
    cluster = manifests(service_of(merged(SMALL, {"autoscale_pods": True, "workers": [group]})))[-1]["spec"]
    security = cluster["rayClusterConfig"]["autoscalerOptions"]["securityContext"]
    assert security == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


@pytest.mark.parametrize(
    "changes",
    [
        {"env": {"HF_TOKEN": "hf-secret", "HOME": "/tmp"}},
        {"app": {"models": [{"model": "m"}], "api_keys": {"alice": "sk-secret"}}},
    ],
)
def test_no_message_shows_a_secret(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as refused:
        service_of(merged(SMALL, changes))
    assert "secret" not in str(refused.value)


def test_kserve_runs_in_a_namespace_with_the_restricted_profile() -> None:
    (runtime, _) = manifests(service_of(merged(SMALL, {"kserve": {}})))
    (container,) = runtime["spec"]["containers"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}

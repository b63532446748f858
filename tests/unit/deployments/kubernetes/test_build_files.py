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

K8S = Path(__file__).parents[4] / "k8s"
ANY_WORKER = {
    "app.kubernetes.io/name": "rayinfer",
    "app.kubernetes.io/instance": "rayinfer",
    "app.kubernetes.io/component": "worker",
}
SMALL = {"app": {"models": [{"model": "smollm2-135m"}]}, "workers": [{"name": "workers"}]}


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
        ("job", ["monitoring", "gateway"]),
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
    assert config["applications"][0]["args"]["models"] == [{"model": "m", "num_gpus": 1, "num_replicas": 2}]


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"imagee": "x"}, "imagee: Extra inputs are not permitted"),
        ({"workers": [{"name": "a", "gpu": 1}]}, "workers.0.gpu: Extra inputs are not permitted"),
        ({"app": {"models": [{"model": "m", "tensor_size": 2}]}}, "app.models.0.tensor_size: Extra inputs"),
        ({"app": {"models": [{"model": "m", "num_gpus": 1}]}}, "app.models.0: an engine takes"),
        ({"app": {"models": [{"model": "m"}], "num_routers": 2}}, "app.num_routers: not among"),
        ({"limits": {"max_waiting": 1}}, "limits.max_waiting: Extra inputs"),
        ({"storage": {"kind": "bucket"}}, "csi_driver: storage of kind bucket needs one"),
        ({"upgrade": {"strategy": "NewClusterWithIncrementalUpgrade"}}, "needs autoscale_pods"),
        ({"upgrade": {"step_size_percent": 30}}, "step_size_percent=30 is above max_surge_percent=20"),
        ({"env": {"A B": "c"}}, r"env.A B.\[key\]: String should match"),
        ({"head": {"tolerations": [{"value": "a"}]}}, "head.tolerations.0: key: operator Equal needs one"),
        ({"head": {"tolerations": [{"operator": "Exists", "value": "a"}]}}, "operator Exists takes none"),
        ({"head": {"tolerations": [{"key": "a", "seconds": 1}]}}, "seconds=1: for the effect NoExecute only"),
        (
            {
                "autoscale_pods": True,
                "upgrade": {"strategy": "NewClusterWithIncrementalUpgrade"},
                "ingress": {"gateway": "g", "inference_pool": True},
            },
            "ingress: in an incremental upgrade KubeRay's own Gateway moves the requests",
        ),
        ({"monitoring": {}, "kserve": {}}, "KServe's pod has no place for monitoring"),
        ({"monitoring": {"objectives": {"itl_s": 0.3, "ttft_s": 3}}}, "ttft_s: .*3 s is no limit of a bucket"),
        ({"name": "Upper"}, "name: String should match pattern"),
        ({"workers": [{"name": "a", "pods": 3, "max_pods": 2}]}, "pods=3 does not lie between"),
        ({"workers": [{"name": "a", "memory": "4Gi", "shared_memory": "8Gi"}]}, "shared_memory=8Gi does not fit"),
        ({"workers": [{"name": "a", "shared_memory": "64Mi"}]}, "shared_memory=64Mi: Ray's object store needs 512Mi"),
        ({"workers": [{"name": "a", "memory": "100m"}]}, "workers.0.memory: String should match"),
        ({"workers": [{"name": "a", "node_selector": {"a b": "c"}}]}, r"workers.0.node_selector.a b.\[key\]: String"),
        ({"head": {"memory": "256Mi"}}, "head: memory=256Mi: 512Mi of it are shared"),
        ({"image": "a b"}, "image: String should match"),
        ({"routers": 64}, "workers: the engines and routers take 6.9 CPUs and 0 GPUs, and all pods have 2 and 0"),
        ({"app": {"models": [{"model": "m", "num_replicas": 9}]}}, "take 4.6 CPUs"),
        ({"app": {"models": [{"model": "m", "drain_timeout_s": float("inf")}]}}, "app.models.0.drain_timeout_s: Input"),
        ({"request_timeout_s": float("inf")}, "request_timeout_s: Input should be less"),
        ({"request_timeout_s": 0.5}, "request_timeout_s: Input should be greater"),
        ({"high_availability": {"redis_address": "redis.example"}}, "high_availability.redis_address: String should"),
        ({"high_availability": {"redis_password_secret": "My Secret"}}, "redis_password_secret: String should match"),
        ({"auth": {"api_keys_secret": ""}}, "auth.api_keys_secret: String should match"),
        ({"storage": {"kind": "pvc", "claim": "A b"}}, "storage.claim: String should match"),
        ({"network_policy": {"egress_cidrs": ["foo"]}}, "network_policy.egress_cidrs: foo is no network"),
        ({"network_policy": {"client_namespaces": ["A"]}}, "client_namespaces.0: String should match"),
        ({"ingress": {"gateway": "g", "hostnames": ["http://a"]}}, "ingress.hostnames.0: String should match"),
        ({"queue": {"cpus": 2}}, "queue: its quota is 2 CPUs, 64Gi and 0 GPUs, and head and workers take 3 CPUs, 8Gi"),
        ({"kserve": {"min_replicas": 5}}, "min_replicas=5 is above max_replicas=3"),
        ({"kserve": {}, "storage": {"kind": "pvc"}}, "KServe's pod has no place for storage"),
        ({"kserve": {}, "limits": {"max_waiting_requests": 1}}, "KServe's pod has no place for limits"),
        (
            {"kserve": {}, "high_availability": {}, "queue": {}},
            "KServe's pod has no place for high_availability, queue",
        ),
        ({"kserve": {}, "app": {"max_body_bytes": 2048}}, "KServe's pod has no place for app.max_body_bytes"),
        ({"kserve": {}, "app": {"models": [{"model": "a", "tokenizer": "b"}]}}, "no place for app.models.0.tokenizer"),
        (
            {"kserve": {}, "app": {"models": [{"model": "a"}, {"model": "b"}]}},
            "app.models: a job or KServe's pod has one model, got 2",
        ),
        ({"batch": {"input": "/tmp/a", "output": "/data/b"}}, "batch.input: String should match"),
        ({"batch": {"input": "/data/a", "output": "/data/a"}}, "batch: input and output are one file"),
        (
            {"batch": {"input": "/data/a", "output": "/data/b"}, "ingress": {"gateway": "g"}},
            "a job has no place for ingress",
        ),
    ],
)
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

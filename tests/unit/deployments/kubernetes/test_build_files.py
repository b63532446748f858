"""`rayinfer build`: the manifests in git are its output, and mistakes in its file are named."""

from pathlib import Path

import pytest
import yaml

from rayinfer.errors import ConfigError
from rayinfer_deployments.config_check import mistakes_in
from rayinfer_deployments.kubernetes.build_files import BUILT_IN_OVERLAYS, changed_files, service_files, write_files
from rayinfer_deployments.kubernetes.kustomize_files import merge_patch, merged
from rayinfer_deployments.kubernetes.manifests import manifests
from rayinfer_deployments.kubernetes.service_file import service_of

K8S = Path(__file__).parents[4] / "k8s"
SMALL = {"app": {"models": [{"model": "smollm2-135m"}]}, "workers": [{"name": "workers"}]}


def test_committed_manifests_equal_a_new_build() -> None:
    assert changed_files(service_files(K8S / "service.yaml").texts, K8S) == []


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
        ("gpu", []),
        ("monitoring", []),
        ("autoscale_pods", []),
        ("job", ["monitoring"]),
        ("kserve", ["multi-node", "incremental-upgrade", "monitoring"]),
        ("init", ["gpu", "gpu-tp2"]),
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
        ({"monitoring": {}, "kserve": {}}, "monitoring: a job or KServe's runtime has none"),
        ({"monitoring": {"objectives": {"itl_s": 0.3, "ttft_s": 3}}}, "ttft_s: .*3 s is no limit of a bucket"),
        ({"name": "Upper"}, "name: String should match pattern"),
        ({"workers": [{"name": "a", "pods": 3, "max_pods": 2}]}, "pods=3 does not lie between"),
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

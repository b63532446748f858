"""The image's files: what is copied exists, nothing floats, and manifests and compose fit the image."""

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rayinfer_deployments.kubernetes.pod_parts import CACHE, HOME, MODELS, USER_ID
from rayinfer_deployments.strict_yaml import load_strictly

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()
COMPOSE = load_strictly((ROOT / "compose.yaml").read_text())
SERVICE_KEYS = {
    *("image", "build", "command", "ports", "volumes", "environment", "read_only", "tmpfs", "shm_size", "cap_drop"),
    *("security_opt", "ulimits", "stop_grace_period", "restart", "depends_on", "user"),
}


def instructions(stage: str) -> list[tuple[str, str]]:
    """The instructions of a stage and of those that it is made from."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    stages: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    current = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            parent, _, current = rest.split()
            stages[current] = (parent, [])
        elif current:
            stages[current][1].append((name, rest.strip()))
    found: list[tuple[str, str]] = []
    while stage in stages:
        stage, own = stages[stage]
        found = own + found
    return found


def of_kind(name: str, stage: str) -> list[str]:
    return [rest for kind, rest in instructions(stage) if kind == name]


def test_every_copied_file_exists_and_reaches_the_builder():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    copies = [words for rest in of_kind("COPY", "wheel") + of_kind("COPY", "installed") if (words := rest.split())]
    sources = [name for words in copies if not words[0].startswith("--from") for name in words[:-1]]
    assert len(sources) >= 8
    for name in sources:
        assert (ROOT / name).exists(), name
        assert any(fnmatch.fnmatch(name, each) or each.startswith(f"{name}/") for each in allowed), name


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_images_run_as_the_user_of_the_manifests_with_its_folders(target):
    assert of_kind("USER", target)[-1] == f"{USER_ID}:{USER_ID}"
    assert instructions(target)[-1][0] == "USER"
    environment = " ".join(of_kind("ENV", target))
    assert f"HOME={HOME} " in environment
    assert f"RAYINFER_CACHE={CACHE}" in environment
    assert of_kind("VOLUME", target) == [CACHE]
    assert f"HF_HOME={CACHE}/huggingface" in environment  # models of the hub, in the volume too
    runs = " ".join(of_kind("RUN", target))
    assert f"useradd --uid {USER_ID} " in runs
    assert f"mkdir -p {MODELS} " in runs
    assert " wget" in runs  # of KubeRay's probes
    assert of_kind("ENTRYPOINT", target) == ['["tini", "--"]']  # KServe's arguments are a whole command


def test_no_compiler_is_in_the_image_of_processors():
    assert "g++" not in " ".join(of_kind("RUN", "cpu"))
    assert "gcc" not in " ".join(of_kind("RUN", "cpu"))


def test_no_image_has_a_floating_tag():
    images = [re.search(r"ARG PYTHON_IMAGE=(\S+)", DOCKERFILE)[1]]
    images += [service["image"] for service in COMPOSE["services"].values() if "build" not in service]
    for image in images:
        assert re.fullmatch(r"[\w./-]+:v?\d+\.\d+(\.\d+)?[\w.-]*", image), image


def test_compose_mounts_what_exists_and_knows_its_names():
    assert set(COMPOSE) == {"name", "services", "volumes"}
    for name, service in COMPOSE["services"].items():
        assert set(service) <= SERVICE_KEYS, name
        assert service["cap_drop"] == ["ALL"]
        targets = [volume.split(":")[1] for volume in service.get("volumes", [])]
        assert len(set(targets)) == len(targets), f"{name}: {targets}"
        assert service["security_opt"] == ["no-new-privileges:true"]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (ROOT / source).exists() if source.startswith("./") else source in COMPOSE["volumes"], volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
        assert set(service.get("depends_on", [])) <= set(COMPOSE["services"])


def test_open_requests_end_before_the_container_does():
    service = COMPOSE["services"]["rayinfer"]
    grace_s = float(service["command"][service["command"].index("--shutdown-grace") + 1])
    assert float(service["stop_grace_period"].removesuffix("s")) > grace_s


def test_prometheus_and_grafana_name_compose_s_services():
    scraped = load_strictly((ROOT / "docker" / "prometheus.yml").read_text())["scrape_configs"]
    hosts = {
        target.partition(":")[0] for job in scraped for part in job["static_configs"] for target in part["targets"]
    }
    sources = load_strictly((ROOT / "docker/grafana/provisioning/datasources/prometheus.yaml").read_text())
    hosts |= {re.match(r"http://(\w+):", each["url"])[1] for each in sources["datasources"]}
    assert hosts <= set(COMPOSE["services"])


def test_the_requirements_of_the_image_are_the_project_s():
    command = [sys.executable, str(ROOT / "docker" / "requirements.py"), "redis"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.splitlines()
    assert any(line.startswith("torch>=") for line in lines)
    assert lines[-1].startswith("redis>=")

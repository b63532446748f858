import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rayinfer_deployments.cluster.worker_imports import MOST_CORES

START_RAY = """
import json, os, pathlib, sys
from rayinfer_deployments.cluster.ray_environment import set_ray_settings
set_ray_settings(owns_ray=True)
import ray
from rayinfer_deployments.cluster.managed_cluster import OwnRay
from rayinfer_deployments.cluster.process_tree import descendants
with OwnRay():
    token = pathlib.Path.home() / ".ray" / "auth_token"
    modes = [path.stat().st_mode & 0o777 for path in (token.parent, token)]
    session = pathlib.Path(ray._private.worker.global_worker.node.get_session_dir_path())
    programs = [process.title for process in descendants(os.getpid())]
    loaded = ray.get(ray.remote(num_cpus=0)(lambda: sorted({"ray.serve", "torch"} & set(sys.modules))).remote())
    ways = [path.stat() for path in (session / "sockets" / "raylet").parents]
    keepers = [way.st_uid for way in ways if not way.st_mode & 0o077]
    environment = {"env_vars": {"GREETING": "from a runtime environment"}}
    greet = ray.remote(num_cpus=0, runtime_env=environment)(lambda: os.environ["GREETING"])
    greeting = ray.get(greet.remote(), timeout=60)
    later_programs = [process.title for process in descendants(os.getpid())]
    report = {"token_modes": modes, "session": str(session), "had_session": session.is_dir(), "keepers": keepers}
    report |= {"driver_loaded": sorted({"aiohttp_cors", "ray.dashboard.optional_deps", "torch"} & set(sys.modules))}
    report |= {"greeting": greeting, "later_programs": later_programs}
    print(json.dumps(report | {"programs": programs, "loaded": loaded}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return what a Ray of a service's own shows, in a home folder without anything of Ray's."""
    home = tmp_path_factory.mktemp("home")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    found = subprocess.run(
        [sys.executable, "-c", START_RAY],
        env=environment | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    return json.loads(found.stdout.splitlines()[-1])


def test_the_token_of_an_own_ray_is_readable_by_its_user_only(report):
    assert report["token_modes"] == [0o700, 0o600]


def test_the_session_of_an_own_ray_is_deleted_at_its_end(report):
    session = Path(report["session"])
    assert report["had_session"]
    assert session.name.startswith("session_2")
    assert not session.parent.parent.exists()


def test_no_other_user_enters_the_session_of_an_own_ray(report):
    assert report["keepers"] == [os.getuid()]


def test_an_own_ray_has_no_processes_that_a_service_does_not_use(report):
    assert any("raylet" in title for title in report["programs"])
    unused = ("monitor.py", "log_monitor.py", "dashboard.py", "DashboardAgent", "RuntimeEnvAgent")
    assert [title for title in report["programs"] if any(name in title for name in unused)] == []


def test_the_agent_of_runtime_environments_starts_with_the_first_of_them(report):
    assert report["greeting"] == "from a runtime environment"
    assert any("RuntimeEnvAgent" in title for title in report["later_programs"])


def test_starting_an_own_ray_imports_nothing_for_a_dashboard(report):
    assert report["driver_loaded"] == []


@pytest.mark.skipif((os.cpu_count() or 1) > MOST_CORES, reason="workers of so many cores import nothing ahead")
def test_workers_that_ray_starts_ahead_have_serve(report):
    assert report["loaded"] == ["ray.serve"]

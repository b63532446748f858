import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

START_RAY = """
import json, os, pathlib
from rayinfer_deployments.ray_environment import set_ray_settings
set_ray_settings(owns_ray=True)
import ray
from rayinfer_deployments.own_ray import OwnRay
with OwnRay():
    token = pathlib.Path.home() / ".ray" / "auth_token"
    modes = [path.stat().st_mode & 0o777 for path in (token.parent, token)]
    session = pathlib.Path(ray._private.worker.global_worker.node.get_session_dir_path())
    print(json.dumps({"token_modes": modes, "session": str(session), "had_session": session.is_dir()}))
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """What a Ray of a service's own shows, in a home folder without anything of Ray's."""
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
    assert not session.exists()
    assert Path(session.parent / "session_latest").resolve() != session

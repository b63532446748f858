import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rayinfer.errors import ConfigError, ModelNotFound, RayinferError
from rayinfer_deployments.cluster.managed_cluster import MARK, RAY_FOLDER, PrivateFolder, delete_abandoned_folders

MAKE_FOLDER = """
import os, sys
from pathlib import Path
from rayinfer_deployments.cluster.managed_cluster import PrivateFolder
print(PrivateFolder(Path(sys.argv[1])).path)
os._exit(1)
"""

START_CLUSTER = """
from rayinfer.errors import ConfigError
from rayinfer_deployments.cluster.managed_cluster import ManagedCluster

def refuse():
    raise ConfigError("wrong")

with ManagedCluster(refuse):
    pass
"""


def folder_with_logs(parent):
    folder = PrivateFolder(parent)
    session = folder.path / RAY_FOLDER / "session_1"
    (session / "logs").mkdir(parents=True)
    (session.parent / "session_latest").symlink_to(session)
    return folder


@pytest.fixture
def abandoned(tmp_path):
    """Return three folders whose processes have ended, oldest first."""
    folders = [folder_with_logs(tmp_path) for _ in range(3)]
    for seconds, folder in enumerate(folders):
        folder.end(RayinferError("Ray has ended"))
        os.utime(folder.path / MARK, (seconds, seconds))
    return [folder.path for folder in folders]


def test_only_its_user_enters_the_folder_of_a_ray(tmp_path):
    folder = PrivateFolder(tmp_path)
    assert folder.path.parent == tmp_path
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert PrivateFolder(tmp_path).path != folder.path


@pytest.mark.parametrize("error", [None, KeyboardInterrupt(), ConfigError("wrong"), ModelNotFound("no folder m")])
def test_a_folder_is_deleted_where_its_logs_explain_nothing(error, tmp_path):
    folder_with_logs(tmp_path).end(error)
    assert list(tmp_path.iterdir()) == []
    assert not hasattr(error, "__notes__")


@pytest.mark.parametrize("error", [RayinferError("Ray has ended"), OSError("full"), ZeroDivisionError()])
def test_an_error_names_the_logs_that_may_explain_it(error, tmp_path):
    folder = folder_with_logs(tmp_path)
    folder.end(error)
    assert error.__notes__ == [f"Ray's logs: {folder.path}/ray/session_1/logs"]
    assert (folder.path / "ray" / "session_1" / "logs").is_dir()


def test_a_folder_is_deleted_after_an_error_of_the_callers_choice(tmp_path):
    folder_with_logs(tmp_path).end(InterruptedError(), (InterruptedError,))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_logs_is_deleted_after_any_error(tmp_path):
    PrivateFolder(tmp_path).end(RayinferError("Ray cannot be started"))
    assert list(tmp_path.iterdir()) == []


def test_the_newest_of_the_abandoned_folders_is_kept(abandoned, tmp_path):
    delete_abandoned_folders(tmp_path)
    assert list(tmp_path.iterdir()) == [abandoned[-1]]


def test_the_newest_folder_is_the_one_that_ended_last(abandoned, tmp_path):
    long_used = folder_with_logs(tmp_path)
    os.utime(long_used.path / MARK, (0, 0))
    long_used.end(RayinferError("Ray has ended"))
    delete_abandoned_folders(tmp_path)
    assert list(tmp_path.iterdir()) == [long_used.path]


def test_a_folder_in_use_is_left_alone(abandoned, tmp_path):
    used = PrivateFolder(tmp_path)
    os.utime(used.path / MARK, (0, 0))
    delete_abandoned_folders(tmp_path)
    assert set(tmp_path.iterdir()) == {used.path, abandoned[-1]}


def test_a_folder_that_a_killed_process_had_is_abandoned(abandoned, tmp_path):
    command = [sys.executable, "-c", MAKE_FOLDER, str(tmp_path)]
    killed = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=60, check=False).stdout.strip()
    delete_abandoned_folders(tmp_path)
    assert [str(path) for path in tmp_path.iterdir()] == [killed]


def test_a_cluster_deletes_abandoned_folders_at_its_start(abandoned, tmp_path):
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # Ray's sockets need a short path
        parent = Path(short, "t")
        tmp_path.rename(parent)
        settings = os.environ | {"RAY_TMPDIR": str(parent)}
        command = [sys.executable, "-c", START_CLUSTER]
        ended = subprocess.run(command, env=settings, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert "ConfigError: wrong" in ended.stderr
        assert [path.name for path in parent.iterdir()] == [abandoned[-1].name]


def test_folders_of_others_are_left_alone(abandoned, tmp_path):
    unmarked, public, linked = abandoned[0], abandoned[1], tmp_path / "ray-link"
    (unmarked / MARK).unlink()
    public.chmod(0o755)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / MARK).touch()  # newest of all
    linked.symlink_to(elsewhere)
    delete_abandoned_folders(tmp_path)
    assert set(tmp_path.iterdir()) == {*abandoned, linked, elsewhere}
    assert (elsewhere / MARK).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_left_alone(abandoned, tmp_path):
    os.chown(abandoned[0], 12345, 12345)
    delete_abandoned_folders(tmp_path)
    assert set(tmp_path.iterdir()) == {abandoned[0], abandoned[-1]}

"""Transfer of model folders: bounded pieces, all verified, one transfer for all processes of a node."""

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from rayinfer.errors import ModelLoadError
from rayinfer_deployments.model_files.folder_manifest import (
    PIECE_BYTES,
    FolderManifest,
    ModelFile,
    manifest_of,
    read_piece,
)
from rayinfer_deployments.model_files.folder_transfer import MAX_IN_FLIGHT, ReceivedFolders
from rayinfer_deployments.model_files.received_entries import list_received, shrink_received


class Source:
    """A folder of this machine in the place of another node's; counts pieces, and may change one."""

    def __init__(self, folder, changes=lambda piece: piece):
        self._folder, self._changes = folder, changes
        self.num_asked = self.num_taken = self.most_in_flight = 0

    def ask(self, place):
        self.num_asked += 1
        self.most_in_flight = max(self.most_in_flight, self.num_asked - self.num_taken)

        def arrived():
            self.num_taken += 1
            return self._changes(read_piece(self._folder, place))

        return arrived


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "empty.txt").touch()
    (folder / "1_Pooling" / "config.json").write_text('{"mode": "mean"}')
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * (5 * PIECE_BYTES // 256) + b"rest")
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").touch()
    return folder


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_received_folder_equals_the_other_nodes(model, tmp_path):
    received, source = ReceivedFolders(tmp_path / "cache"), Source(model)
    manifest = manifest_of(model, with_weights=True)
    folder = received.receive("m", manifest, source, with_weights=True)
    assert contents(folder) == {name: data for name, data in contents(model).items() if not name.startswith(".")}
    assert manifest_of(folder, with_weights=True).identity == manifest.identity  # it can be a source, too
    assert source.most_in_flight <= MAX_IN_FLIGHT
    assert received.newest("m", with_weights=True) == folder
    assert received.newest("m", with_weights=False) is None
    assert received.newest("other", with_weights=True) is None


def test_processes_of_a_node_share_one_transfer(model, tmp_path):
    received, source = ReceivedFolders(tmp_path / "cache"), Source(model)
    manifest = manifest_of(model, with_weights=True)
    folders = []
    threads = [
        threading.Thread(
            target=lambda: folders.append(received.receive("m", manifest, source, with_weights=True)), daemon=True
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(folders)) == 1
    assert source.num_asked == len(list(manifest.pieces()))


def test_routers_get_no_weights(model, tmp_path):
    manifest = manifest_of(model, with_weights=False)
    assert [file.name for file in manifest.files] == ["1_Pooling/config.json", "config.json", "empty.txt"]
    folder = ReceivedFolders(tmp_path / "cache").receive("m", manifest, Source(model), with_weights=False)
    assert not (folder / "model.safetensors").exists()


@pytest.mark.parametrize("change", [lambda data: b"\xff" + data[1:], lambda data: data[:-1]])
def test_a_changed_piece_leaves_no_folder(change, model, tmp_path):
    received = ReceivedFolders(tmp_path / "cache")
    source = Source(model, lambda piece: replace(piece, data=change(piece.data)))
    with pytest.raises(ModelLoadError, match="was changed on its way"):
        received.receive("m", manifest_of(model, with_weights=True), source, with_weights=True)
    assert received.newest("m", with_weights=True) is None
    received.receive("m", manifest_of(model, with_weights=True), Source(model), with_weights=True)


def test_a_file_that_changes_meanwhile_is_an_error(model, tmp_path):
    manifest = manifest_of(model, with_weights=True)
    (model / "model.safetensors").write_bytes(b"shorter")
    with pytest.raises(ModelLoadError, match="has changed while another node read it"):
        ReceivedFolders(tmp_path / "cache").receive("m", manifest, Source(model), with_weights=True)
    assert manifest_of(model, with_weights=True).identity != manifest.identity


def test_the_least_recently_used_folders_make_room(tmp_path):
    manifests, sources = {}, {}
    for name in "abc":
        folder = tmp_path / name
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(name.encode() * 1000)
        manifests[name], sources[name] = manifest_of(folder, with_weights=True), Source(folder)
    root = tmp_path / "cache"
    for name in "aba":  # the first is used again
        receive_elsewhere(root, name, tmp_path / name)
    ReceivedFolders(root, max_bytes=2500).receive("c", manifests["c"], sources["c"], with_weights=True)
    assert [(entry.model, entry.num_bytes, entry.is_in_use) for entry in list_received(root)] == [
        ("a", 1000, False),
        ("c", 1000, True),  # by this process
    ]
    assert [entry.model for entry in shrink_received(root, 0)] == ["a"]
    assert [entry.model for entry in list_received(root)] == ["c"]


def receive_elsewhere(root, name, folder):
    """Receive a folder in a process that ends."""
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[4])\n"
        "from test_folder_transfer import ReceivedFolders, Source, manifest_of\n"
        "root, name, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])\n"
        "manifest = manifest_of(folder, with_weights=True)\n"
        "ReceivedFolders(root).receive(name, manifest, Source(folder), with_weights=True)"
    )
    subprocess.run([sys.executable, "-c", code, root, name, folder, Path(__file__).parent], check=True)


def test_a_name_outside_of_the_folder_is_refused(model, tmp_path):
    file = ModelFile(name="../../evil.json", size=2, modified_ns=1)
    with pytest.raises(ModelLoadError, match="outside of the model's folder"):
        ReceivedFolders(tmp_path / "cache").receive(
            "m", FolderManifest(files=(file,)), Source(model), with_weights=True
        )
    assert not list(tmp_path.rglob("evil.json"))

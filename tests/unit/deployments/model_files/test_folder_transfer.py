"""Transfer of model folders: bounded pieces, all verified, one transfer for all processes of a node."""

import threading
from dataclasses import replace

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


def test_a_name_outside_of_the_folder_is_refused(model, tmp_path):
    file = ModelFile(name="../../evil.json", size=2, modified_ns=1)
    with pytest.raises(ModelLoadError, match="outside of the model's folder"):
        ReceivedFolders(tmp_path / "cache").receive(
            "m", FolderManifest(files=(file,)), Source(model), with_weights=True
        )
    assert not list(tmp_path.rglob("evil.json"))

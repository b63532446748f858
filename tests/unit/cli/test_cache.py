import contextlib
import fcntl
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rayinfer.config import DEFAULT_PACKED_CACHE_BYTES, packed_cache_bytes
from rayinfer.errors import ConfigError
from rayinfer_deployments.cli import build_application
from support.fakes.fake_blocks import open_slots


@pytest.fixture
def packed(tmp_path, monkeypatch):
    """A cache folder with entries of one, two and three MiB, used one after the other."""
    monkeypatch.setenv("RAYINFER_CACHE", str(tmp_path))
    monkeypatch.setenv("RAYINFER_SHARED_MEMORY", str(tmp_path / "shared"))
    for size in (1, 2, 3):
        entry = tmp_path / "packed" / f"key{size}"
        entry.mkdir(parents=True)
        (entry / "weights.safetensors").write_bytes(bytes(size << 20))
        os.utime(entry / "weights.safetensors", (size, size))
    return tmp_path / "packed"


def run(*arguments):
    result = CliRunner().invoke(build_application(), ["cache", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_entries_are_listed_by_their_latest_use(packed):
    entries = json.loads(run("ls", "--json"))
    assert [(entry["key"], entry["num_bytes"] >> 20) for entry in entries] == [("key1", 1), ("key2", 2), ("key3", 3)]
    lines = run("ls").splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["key1", "key2", "key3"]
    assert lines[3].startswith("3 entries, 0.01 of at most 20 GiB")


def test_a_clean_cache_keeps_what_it_is_asked_to_keep(packed):
    assert run("clean", "--keep-gib", str(4 / 1024)).startswith("deleted 2 entries")
    assert [path.name for path in packed.iterdir()] == ["key3"]
    assert run("clean").startswith("deleted 1 entries")
    assert list(packed.iterdir()) == []


def test_block_stores_are_listed_and_deleted_but_those_in_use(packed):
    folders = {"kv-memory": packed.parent / "shared", "kv-disk": packed.parent / "kv-store"}
    for folder in folders.values():
        folder.mkdir()
    open_slots(folders["kv-memory"] / "ended.kv").close()
    open_slots(folders["kv-disk"] / "ended.kv").close()
    running = open_slots(folders["kv-memory"] / "running.kv")
    stores = [entry for entry in json.loads(run("ls", "--json")) if entry["kind"].startswith("kv")]
    assert [(each["kind"], Path(each["path"]).name, each["model"], each["is_in_use"]) for each in stores] == [
        ("kv-memory", "ended.kv", "model", False),
        ("kv-memory", "running.kv", "model", True),
        ("kv-disk", "ended.kv", "model", False),
    ]
    lines = run("ls").splitlines()
    assert any(line.startswith("running.kv") and line.endswith("model, in use") for line in lines)
    assert any(line.startswith("2 KV block stores") for line in lines)
    assert f"deleted 1 KV block stores, 0.00 GiB, from {folders['kv-memory']}" in run("clean")
    assert sorted(path.name for path in folders["kv-memory"].iterdir()) == ["running.kv", "running.lock"]
    assert list(folders["kv-disk"].iterdir()) == []
    running.close()


def test_models_of_other_nodes_are_listed_and_deleted(packed):
    nodes = packed.parent / "models" / "nodes" / "6d" / "whole"
    for used_s, (version, size) in enumerate([("v1", 1), ("v2", 2)]):
        (nodes / version).mkdir(parents=True)
        (nodes / version / "model.safetensors").write_bytes(bytes(size << 20))
        os.utime(nodes / version, (used_s, used_s))
    (nodes.parent / "name").write_text("/models/large")
    assert [entry["model"] for entry in json.loads(run("ls", "--json")) if entry["kind"] == "copy"] == [
        "/models/large",
        "/models/large",
    ]
    lines = run("ls").splitlines()
    assert lines[4].startswith("6d/whole/v1")
    assert lines[4].endswith("/models/large")
    assert lines[6].startswith("2 models of other nodes, 0.00 of at most 100 GiB")
    assert "deleted 1 models of other nodes" in run("clean", "--keep-gib", str(2 / 1024))
    with hold(nodes / "v2"):
        assert "1 in use are kept\n" in run("clean")
    run("clean")
    assert not list(nodes.glob("[!.]*"))


@contextlib.contextmanager
def hold(folder):
    """Use a folder as another process would."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    yield
    os.close(descriptor)


def test_the_size_of_the_cache_is_a_setting(monkeypatch):
    monkeypatch.delenv("RAYINFER_PACKED_CACHE_GIB", raising=False)
    assert packed_cache_bytes() == DEFAULT_PACKED_CACHE_BYTES
    monkeypatch.setenv("RAYINFER_PACKED_CACHE_GIB", "1.5")
    assert packed_cache_bytes() == 3 << 29
    for wrong in ("x", "-1", "inf", "nan"):
        monkeypatch.setenv("RAYINFER_PACKED_CACHE_GIB", wrong)
        with pytest.raises(ConfigError, match="RAYINFER_PACKED_CACHE_GIB must be"):
            packed_cache_bytes()

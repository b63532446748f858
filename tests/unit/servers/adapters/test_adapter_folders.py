"""Folders of adapters on disk with names and files that no adapter has."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.kv_cache.adapter_id import CONFIG_FILE, WEIGHTS_FILE, folder_digest
from rayinfer.servers.adapters.adapter_folders import AdapterFolders
from rayinfer.servers.adapters.registry import AdapterRegistry
from support.services.polling import until
from unit.servers.adapters.conftest import pipe_in_place_of, write_adapter

FILES = (CONFIG_FILE, WEIGHTS_FILE)
TIMEOUT_S = 5


def names(registry):
    return [adapter.name for adapter in registry.adapters]


async def refresh(registry, times=2):
    for _ in range(times):
        await asyncio.wait_for(registry.refresh(), TIMEOUT_S)


@pytest.mark.parametrize("name", FILES)
async def test_a_pipe_in_a_watched_folder_stops_no_other_adapter(registry, tmp_path, caplog, name):
    write_adapter(tmp_path / "watched" / "good")
    with pipe_in_place_of(write_adapter(tmp_path / "watched" / "bad") / name):
        await refresh(registry, times=4)
        await registry.load("sql", str(write_adapter(tmp_path / "loadable" / "sql")))
        await registry.unload("sql")
    assert names(registry) == ["good", "poet"]
    assert caplog.text.count(f"bad/{name} is no regular file") == 1


@pytest.mark.parametrize("name", FILES)
async def test_a_pipe_is_refused_before_an_engine_reads_it(registry, tmp_path, name):
    folder = write_adapter(tmp_path / "loadable" / "bad")
    with pipe_in_place_of(folder / name), pytest.raises(InvalidParameter, match=f"{name} is no regular file"):
        await asyncio.wait_for(registry.load("sql", str(folder)), TIMEOUT_S)


async def test_weights_that_are_too_large_stop_no_other_adapter(registry, tmp_path, caplog):
    os.truncate(write_adapter(tmp_path / "watched" / "bad") / WEIGHTS_FILE, 12 << 40)  # takes no disk space
    write_adapter(tmp_path / "watched" / "good")
    await refresh(registry, times=4)
    assert names(registry) == ["good", "poet"]
    assert caplog.text.count(f"bad/{WEIGHTS_FILE} has more than") == 1
    write_adapter(tmp_path / "watched" / "bad")
    await refresh(registry)
    assert names(registry) == ["bad", "good", "poet"]


class FailingOnce(dict):
    """Folders that are not to be had the first time."""

    has_failed = False

    def items(self):
        if not self.has_failed:
            self.has_failed = True
            raise MemoryError
        return super().items()


async def test_a_failed_refresh_is_logged_and_the_next_ones_go_on(base, tmp_path, caplog):
    registry = AdapterRegistry({base.name: base})
    modules = FailingOnce(poet=str(write_adapter(tmp_path / "poet")))
    registry.add_base(base, AdapterFolders(base=base.name, modules=modules))
    following = asyncio.create_task(registry.follow(interval_s=0.01))
    try:
        await until(lambda: following.done() or names(registry) == ["poet"])
        assert not following.done()
    finally:
        following.cancel()
        with suppress(asyncio.CancelledError, MemoryError):
            await following
    assert "MemoryError" in caplog.text


@pytest.mark.parametrize("name", [b"bad\xff", b"new\nline", b"a@b", b" ", b'quo"te', "ü".encode(), b"x" * 129])
async def test_a_watched_subfolder_whose_name_no_adapter_may_have_is_skipped(client, registry, tmp_path, caplog, name):
    write_adapter(tmp_path / "watched" / "good")
    write_adapter(tmp_path / "watched" / os.fsdecode(name))
    (tmp_path / "watched" / "lost+found").mkdir()  # has no adapter: not worth a warning
    await refresh(registry, times=4)
    assert names(registry) == ["good", "poet"]
    assert (await client.get("/v1/models")).status_code == 200
    (warning,) = [record.getMessage() for record in caplog.records if "is not served" in record.getMessage()]
    assert f"subfolder {os.fsdecode(name)!r:.80}" in warning
    warning.encode()
    assert warning.isprintable()


@pytest.mark.parametrize("replaced", [False, True])
async def test_other_content_counts_also_with_the_size_and_times_of_the_former(registry, models, tmp_path, replaced):
    folder = write_adapter(tmp_path / "watched" / "cook", b"one")
    set_times(folder)
    await refresh(registry)
    first = models["cook"].adapter.digest
    if replaced:
        set_times(write_adapter(tmp_path / "new", b"two"))
        (tmp_path / "new" / WEIGHTS_FILE).rename(folder / WEIGHTS_FILE)
    else:
        await asyncio.sleep(0.05)  # clocks of file systems are coarse
        set_times(write_adapter(folder, b"two"))
    await refresh(registry)
    assert models["cook"].adapter.digest == folder_digest(folder) != first


def set_times(folder: Path) -> None:
    for name in FILES:
        os.utime(folder / name, (0, 0))

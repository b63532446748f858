"""Registry of adapters: settings, watched folders, the shared table, and the names that requests choose."""

import shutil

import pytest

from rayinfer.errors import InvalidParameter, ResourceNotFound, UnknownModel
from rayinfer.kv_cache.adapter_id import adapter_id, folder_digest
from rayinfer.servers.adapters.adapter_folders import AdapterFolders
from rayinfer.servers.adapters.adapter_table import MemoryTable
from rayinfer.servers.adapters.registry import AdapterRegistry
from rayinfer.servers.served_model import base_models, find_model
from unit.servers.adapters.conftest import write_adapter


def names(registry):
    return [adapter.name for adapter in registry.adapters]


async def test_an_adapter_of_the_settings_is_a_model_of_its_name(registry, models, tmp_path):
    found = find_model(models, "poet", "generate")
    assert found.adapter.id == adapter_id("poet", folder_digest(tmp_path / "poet"))
    assert (found.adapter.base, found.chat_template) == ("org/tiny", models["org/tiny"].chat_template)


async def test_a_request_without_a_model_means_no_adapter(registry, models):
    assert find_model(models, None, "generate").adapter is None
    assert list(base_models(models)) == ["org/tiny"]


async def test_subfolders_of_a_watched_folder_come_and_go(registry, tmp_path):
    folder = write_adapter(tmp_path / "watched" / "cook")
    await registry.refresh()
    assert names(registry) == ["poet"]  # its files may still be written
    await registry.refresh()
    assert names(registry) == ["cook", "poet"]
    shutil.rmtree(folder)
    await registry.refresh()
    assert names(registry) == ["poet"]


async def test_a_watched_subfolder_with_other_content_is_another_adapter(registry, models, tmp_path):
    folder = write_adapter(tmp_path / "watched" / "cook", b"one")
    for _ in range(2):
        await registry.refresh()
    first = models["cook"].adapter.id
    write_adapter(folder, b"two, longer")
    await registry.refresh()
    assert models["cook"].adapter.id == first
    await registry.refresh()
    assert models["cook"].adapter.id == adapter_id("cook", folder_digest(folder)) != first


async def test_what_has_not_changed_stays_the_same_model(registry, models):
    before = models["poet"]
    await registry.refresh()
    assert models["poet"] is before


async def test_another_router_serves_what_one_has_loaded_and_unloaded(base, tmp_path):
    table, served = MemoryTable(), [{base.name: base} for _ in range(3)]
    folder = str(write_adapter(tmp_path / "a"))
    modules = {"poet": str(write_adapter(tmp_path / "poet"))}
    folders = AdapterFolders(base=base.name, modules=modules, roots=(str(tmp_path),))
    routers = [AdapterRegistry(models, table=table) for models in served]
    for router in routers[:2]:
        router.add_base(base, folders)
        await router.refresh()
    await routers[0].load("sql", folder)
    await routers[0].unload("poet")
    await routers[1].refresh()
    assert names(routers[1]) == ["sql"]
    await routers[1].unload("sql")
    await routers[1].load("poet", folder)
    routers[2].add_base(
        base, AdapterFolders(base=base.name, modules=modules, roots=(str(tmp_path),))
    )  # one that joins later
    for router in routers[::2]:
        await router.refresh()
        assert names(router) == ["poet"]
    assert {models["poet"].adapter.folder for models in served} == {folder}


async def test_the_later_of_two_loads_under_one_name_counts_in_every_router(base, tmp_path):
    table = MemoryTable()
    routers = [AdapterRegistry({base.name: base}, table=table) for _ in range(2)]
    folders = [str(write_adapter(tmp_path / name, name.encode())) for name in ("first", "second")]
    for router, folder in zip(routers, folders, strict=True):
        router.add_base(base, AdapterFolders(base=base.name, roots=(str(tmp_path),)))
        await router.load("sql", folder)  # neither has heard of the other's
    for router in routers:
        await router.refresh()
        assert [adapter.folder for adapter in router.adapters] == [folders[1]]


async def test_a_name_in_use_is_replaced_only_in_place(registry, models, tmp_path):
    folder = str(write_adapter(tmp_path / "loadable" / "new", b"new"))
    with pytest.raises(InvalidParameter, match="has already been loaded"):
        await registry.load("poet", folder)
    await registry.load("poet", folder, in_place=True)
    assert models["poet"].adapter.folder == folder
    await registry.unload("poet")
    with pytest.raises(UnknownModel):
        find_model(models, "poet")


@pytest.mark.parametrize("name", ["org/tiny", "", "a b", "../x", "x" * 129])
async def test_a_name_that_cannot_be_an_adapters_is_refused(registry, models, tmp_path, name):
    folder = str(write_adapter(tmp_path / "loadable" / "new"))
    with pytest.raises(InvalidParameter):
        await registry.load(name, folder, in_place=True)
    assert models["org/tiny"].adapter is None


async def test_folders_outside_of_the_roots_are_refused_also_through_links(registry, tmp_path):
    outside = write_adapter(tmp_path / "outside")
    (tmp_path / "loadable").mkdir()
    (tmp_path / "loadable" / "link").symlink_to(outside)
    for path in (outside, tmp_path / "loadable" / "link", tmp_path / "loadable" / ".." / "outside"):
        with pytest.raises(InvalidParameter, match="lora_path must lie below"):
            await registry.load("x", str(path))


async def test_an_adapter_of_a_watched_folder_is_not_unloaded_by_name(registry, tmp_path):
    write_adapter(tmp_path / "watched" / "cook")
    for _ in range(2):
        await registry.refresh()
    with pytest.raises(InvalidParameter, match="watched folder"):
        await registry.unload("cook")
    with pytest.raises(ResourceNotFound):
        await registry.unload("org/tiny")

"""Registry of a router's adapters: it keeps them in the mapping of served models, as models of their own names."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from rayinfer.errors import InvalidParameter, NotSupported, ResourceNotFound, shown
from rayinfer.kv_cache.adapter_id import AdapterFileRefused, check_adapter_files
from rayinfer.protocols import LoadAdapter
from rayinfer.servers.adapters.adapter_folders import AdapterFolders, FolderScan
from rayinfer.servers.adapters.adapter_name import MAX_NAME_CHARS, is_adapter_name
from rayinfer.servers.adapters.adapter_table import AdapterRecord, AdapterTable, MemoryTable, SharedAdapters
from rayinfer.servers.served_model import ServedAdapter, ServedModel, names_of

FOLLOW_INTERVAL_S = 2.0  # between two looks at the table and at folders

logger = logging.getLogger(__name__)


async def _nothing() -> None:
    pass


class AdapterRegistry:
    """Adapters of the models that take some: of settings, of watched folders, and of operators while we serve.

    Of several with one name the operators' counts, then the settings'. Without roots operators may load none.
    `spread` has the other routers read the table, once it has changed.
    """

    def __init__(
        self,
        served: dict[str, ServedModel],
        *,
        table: AdapterTable | None = None,
        spread: Callable[[], Awaitable[None]] = _nothing,
    ) -> None:
        self._served = served
        self._roots: list[Path] = []
        self._shared = SharedAdapters(MemoryTable() if table is None else table)
        self._spread = spread
        self._bases: dict[str, ServedModel] = {}
        self._scans: dict[str, FolderScan] = {}
        self._on_disk: dict[str, ServedAdapter] = {}
        self._changing = asyncio.Lock()
        self._reading = asyncio.Lock()

    @property
    def may_change(self) -> bool:
        """Whether operators may load and unload adapters."""
        return bool(self._roots)

    @property
    def adapters(self) -> list[ServedAdapter]:
        """All adapters, by name."""
        found = [model.adapter for model in list(self._served.values()) if model.adapter is not None]
        return sorted(found, key=lambda adapter: adapter.name)

    def add_base(self, model: ServedModel, folders: AdapterFolders) -> None:
        """Let a model have adapters: those on record and on disk with the next `refresh`."""
        self._roots += [Path(root).expanduser().resolve() for root in folders.roots]
        self._bases[model.name] = model
        self._scans[model.name] = FolderScan(folders)

    async def load(self, name: str, folder: str, *, base: str | None = None, in_place: bool = False) -> ServedAdapter:
        """Load an adapter for requests of its name: an engine of the model has read and checked it then.

        With `in_place` another one of the name gives way to it; running requests keep theirs. Raises InvalidParameter,
        ResourceNotFound, AdapterRefused, which names the file or the tensor, NotReady and NotSupported.
        """
        self._check_may_change()
        if not is_adapter_name(name):
            raise InvalidParameter(
                f"lora_name must be 1 to {MAX_NAME_CHARS} letters, digits and . _ : / -, got {shown(name)}", "lora_name"
            )
        async with self._changing:
            model = self._base(base)
            self._check_is_free(name, in_place=in_place)
            path = await asyncio.to_thread(self._allowed_folder, folder)
            assert model.engines is not None, "bases are models with engines"
            digest = (await model.engines.control(LoadAdapter(path)))[0]
            record = AdapterRecord(name=name, base=model.name, folder=path, digest=digest)
            await self._write(lambda: self._shared.put(record))
            logger.info("adapter %s of %s is loaded from %s", name, model.name, path)
            return _served_adapter(record)

    async def unload(self, name: str) -> None:
        """Take an adapter's name away: new requests of it are refused, running ones finish.

        Raises ResourceNotFound, NotSupported.
        """
        self._check_may_change()
        async with self._changing:
            known = self._served.get(name)
            if known is None or known.adapter is None:
                raise ResourceNotFound(f"The lora adapter '{name:.200}' cannot be found.", "lora_name")
            if known.adapter.origin == "folder":
                raise InvalidParameter(
                    f"The lora adapter '{name}' comes from a watched folder: it leaves with its subfolder.", "lora_name"
                )
            on_disk = self._on_disk.get(name)
            is_in_settings = on_disk is not None and on_disk.origin == "settings"
            removed = AdapterRecord(name=name, removed=True)
            await self._write(lambda: self._shared.put(removed) if is_in_settings else self._shared.delete(name))
            logger.info("adapter %s is unloaded", name)

    async def refresh(self, *, waits_for_rest: bool = True) -> None:
        """Read the table and the folders, and serve what is there now."""
        async with self._reading:
            try:
                await asyncio.to_thread(self._shared.read)
            except Exception:
                logger.exception("the table of adapters cannot be read")  # what is known stays
            scans = list(self._scans.values())
            found = await asyncio.gather(
                *(asyncio.to_thread(scan.scan, waits_for_rest=waits_for_rest) for scan in scans)
            )
            self._on_disk = {name: adapter for adapters in found for name, adapter in adapters.items()}
            self._publish()

    async def follow(self, interval_s: float = FOLLOW_INTERVAL_S) -> None:
        """Refresh again and again, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            try:
                await self.refresh()
            except Exception:  # whatever lies in a folder, later adapters are served
                logger.exception("the adapters cannot be read")

    async def _write(self, change: Callable[[], None]) -> None:
        """Change the table, and have all routers serve by it."""
        async with self._reading:
            await asyncio.to_thread(change)
            self._publish()
        await self._spread()

    def _publish(self) -> None:
        """Make the served adapters those that count; what has not changed stays the same object."""
        wanted = dict(self._on_disk)
        for name, record in self._shared.by_name().items():
            if record.removed:
                if name in wanted and wanted[name].origin == "settings":
                    del wanted[name]
            else:
                wanted[name] = _served_adapter(record)
        for name, model in list(self._served.items()):
            if model.adapter is not None and name not in wanted:
                del self._served[name]
        for name, adapter in wanted.items():
            known, base = self._served.get(name), self._bases.get(adapter.base)
            if base is None or (known is not None and (known.adapter is None or known.adapter == adapter)):
                continue  # of another model of the service, or under a model's own name
            self._served[name] = replace(base, name=name, created=int(time.time()), adapter=adapter)

    def _check_may_change(self) -> None:
        if not self.may_change:
            raise NotSupported("Adapters are not loaded and unloaded here: the service has no lora_roots.", "lora_name")

    def _check_is_free(self, name: str, *, in_place: bool) -> None:
        known = self._served.get(name)
        if known is not None and known.adapter is None:
            raise InvalidParameter(f"The lora adapter name '{name}' conflicts with a served base model.", "lora_name")
        if known is not None and not in_place:
            raise InvalidParameter(
                f"The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set"
                " 'load_inplace' to True.",
                "lora_name",
            )

    def _base(self, name: str | None) -> ServedModel:
        if not self._bases:
            raise NotSupported("No model here takes adapters: set enable_lora.", "lora_name")
        if name is None and len(self._bases) == 1:
            return next(iter(self._bases.values()))
        if name not in self._bases:
            raise InvalidParameter(
                f"base_model_name must be one of the models that take adapters, {names_of(self._bases)}, got"
                f" {shown(name)}",
                "base_model_name",
            )
        return self._bases[name]

    def _allowed_folder(self, folder: str) -> str:
        """Resolve a folder with all its links; raises InvalidParameter outside of the roots, ResourceNotFound.

        An engine reads the folder next, and all its requests would wait for a pipe.
        """
        try:
            path = Path(folder).expanduser().resolve()
        except (OSError, RuntimeError, ValueError):
            raise InvalidParameter(f"lora_path is no path: {shown(folder)}", "lora_path") from None
        if not any(path.is_relative_to(root) for root in self._roots):
            roots = ", ".join(dict.fromkeys(str(root) for root in self._roots))
            raise InvalidParameter(f"lora_path must lie below one of {roots}, got {shown(folder)}", "lora_path")
        try:
            check_adapter_files(path)
        except AdapterFileRefused as error:
            raise InvalidParameter(f"lora_path has an adapter that cannot be read: {error}", "lora_path") from None
        except OSError:
            raise ResourceNotFound(f"No adapter found for {shown(folder)}", "lora_path") from None
        return str(path)


def _served_adapter(record: AdapterRecord) -> ServedAdapter:
    return ServedAdapter(
        name=record.name, folder=record.folder, digest=record.digest, base=record.base, origin="request"
    )

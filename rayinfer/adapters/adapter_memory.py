"""Adapters of one rank: those in host memory, and the terms in the slots of its decoder."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from rayinfer.adapters.adapter import Adapter, AdapterLimits, read_adapter
from rayinfer.adapters.target_layers import TargetLayers
from rayinfer.models.causal_decoder import CausalDecoder
from rayinfer.models.decoder import Decoder

READING_THREADS = 2


class AdapterMemory:
    """Reads adapters, keeps them by digest, and lays them out for this rank's layers when a request needs them."""

    def __init__(self, targets: TargetLayers, limits: AdapterLimits, device: torch.device) -> None:
        self._targets, self._limits, self._device = targets, limits, device
        self._adapters: dict[str, Adapter] = {}  # by digest
        self._threads = ThreadPoolExecutor(READING_THREADS, thread_name_prefix="adapters")
        self._read_ahead: dict[str, Future[Adapter]] = {}  # by folder, the latest of each

    def start_reading(self, folder: str) -> Future[Adapter]:
        """Start to read and to check a PEFT folder in a thread; `load`, which must follow, takes what it finds."""
        self._read_ahead.pop(folder, None)
        reading = self._threads.submit(read_adapter, Path(folder), self._targets, self._limits)
        self._read_ahead[folder] = reading
        return reading

    def load(self, folder: str) -> Adapter:
        """Keep what was read of a PEFT folder, or read it now if that was not started; raises AdapterRefused."""
        reading = self._read_ahead.pop(folder, None) or self.start_reading(folder)
        self._read_ahead.pop(folder, None)
        adapter = reading.result()
        self._adapters[adapter.digest] = adapter
        return adapter

    def drop(self, digest: str) -> None:
        """Forget an adapter that no request has any more; what a slot holds of it stays until the slot is reused."""
        self._adapters.pop(digest, None)

    def close(self) -> None:
        """Read nothing more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def fill_slot(self, decoder: Decoder, slot: int, digest: str) -> None:
        """Put the adapter's terms into a slot, unless they are there; between two steps."""
        assert isinstance(decoder, CausalDecoder), "others take no adapters"
        assert decoder.adapter_slots is not None, "use_adapters comes before"
        if decoder.adapter_slots.adapters[slot] == digest:
            return
        terms = self._adapters[digest].terms
        decoder.adapter_slots.adapters[slot] = None  # if this fails half-way
        for path, layer in decoder.adapted_layers().items():
            assert layer.adapters is not None, "use_adapters comes before"
            if path in terms or layer.adapters[slot]:
                layer.adapters[slot] = list(layer.low_rank_parts(terms.get(path, ()), self._limits.dtype, self._device))
        decoder.adapter_slots.adapters[slot] = digest

    def empty_slots(self, decoder: Decoder, slots: Sequence[int]) -> None:
        """Free the terms in slots that no request has; between two steps."""
        assert isinstance(decoder, CausalDecoder), "others take no adapters"
        assert decoder.adapter_slots is not None, "use_adapters comes before"
        for slot in slots:
            decoder.adapter_slots.adapters[slot] = None
            for layer in decoder.adapted_layers().values():
                assert layer.adapters is not None, "use_adapters comes before"
                if layer.adapters[slot]:
                    layer.adapters[slot] = []

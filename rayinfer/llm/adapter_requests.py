"""Adapters of requests to an `LLM`, as vLLM names them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rayinfer.errors import InvalidParameter, shown
from rayinfer.kv_cache.adapter_id import FilesStamp, adapter_id, files_stamp
from rayinfer.protocols import ControlAction, LoadAdapter


@dataclass(frozen=True, slots=True)
class LoRARequest:
    """A LoRA adapter: its name, a number that may be anything, and the folder that PEFT saved it in."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class AdapterRequests:
    """Loads the adapters that requests name: a folder again only after its files have changed."""

    def __init__(self, control: Callable[[ControlAction], str]) -> None:
        self._control = control  # of the engine
        self._known: dict[str, tuple[str, FilesStamp | None, str]] = {}  # by name: path, files, id

    def adapter_id(self, request: LoRARequest) -> str:
        """Return the id that engine requests have; raises RequestError for an adapter that cannot be loaded."""
        if not isinstance(request, LoRARequest) or not request.lora_name:
            raise InvalidParameter(
                f"lora_request must be a LoRARequest with a name, got {shown(request)}", "lora_request"
            )
        files = files_stamp(Path(request.lora_path))
        known = self._known.get(request.lora_name)
        if known is not None and known[:2] == (request.lora_path, files):
            return known[2]
        found = adapter_id(request.lora_name, self._control(LoadAdapter(request.lora_path)))
        self._known[request.lora_name] = (request.lora_path, files, found)
        return found


def spread_adapters(
    given: LoRARequest | Sequence[LoRARequest | None] | None, num_prompts: int
) -> Sequence[LoRARequest | None]:
    """Return one adapter, or none, for each prompt; raises InvalidParameter for another number of them."""
    if given is None or isinstance(given, LoRARequest):
        return [given] * num_prompts
    if len(given) != num_prompts:
        raise InvalidParameter(f"lora_request has {len(given)} entries for {num_prompts} prompts", "lora_request")
    return given

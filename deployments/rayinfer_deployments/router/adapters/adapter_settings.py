"""Settings of a model's LoRA adapters."""

from collections.abc import Sequence
from typing import Annotated, Any, Self

from pydantic import BaseModel, Field, StringConstraints, model_validator

from rayinfer.config import EngineConfig
from rayinfer.servers.adapters.adapter_folders import AdapterFolders
from rayinfer.servers.adapters.adapter_name import NAME_PATTERN

AdapterName = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$")]
FIELDS = frozenset({"lora_modules", "lora_folder"})  # which say nothing to engines


class AdapterArgs(EngineConfig):
    """An engine's settings, and the adapters that are served with its model."""

    lora_modules: dict[AdapterName, str] = Field(
        {}, description="folders of LoRA adapters by the names under which requests choose them; needs enable_lora"
    )
    lora_folder: str | None = Field(
        None,
        description="folder whose subfolders are served as LoRA adapters by their names, as they come and go; needs"
        " enable_lora",
    )

    @model_validator(mode="after")
    def _engines_take_adapters(self) -> Self:
        if (self.lora_modules or self.lora_folder is not None) and not self.enable_lora:
            raise ValueError("lora_modules and lora_folder need enable_lora")
        return self

    def adapter_folders(self, served_name: str, roots: Sequence[str] = ()) -> AdapterFolders | None:
        """Return where the adapters are and operators' may be; None where the model takes none."""
        if not self.enable_lora:
            return None
        modules, watched = dict(self.lora_modules), self.lora_folder
        return AdapterFolders(base=served_name, modules=modules, watched=watched, roots=tuple(roots))

    def lora_settings(self) -> dict[str, Any] | None:
        """Return what routers are built from; None where the model takes no adapters."""
        return {"modules": self.lora_modules, "folder": self.lora_folder} if self.enable_lora else None


class AdapterServiceArgs(BaseModel):
    """Settings of adapters that hold for all models of a service."""

    lora_roots: list[str] = Field(
        [],
        description="folders below which operators may load LoRA adapters while the service runs, by"
        " /v1/load_lora_adapter and `rayinfer adapters`; none: they may not",
    )

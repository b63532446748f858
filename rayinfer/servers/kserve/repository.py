"""The models that the protocol names: language models, and tensor models, which can be unloaded and loaded again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rayinfer.errors import InvalidParameter, NotReady, NotSupported, UnknownModel
from rayinfer.protocols import TensorModel
from rayinfer.servers.caller import ANYONE, Caller, hide_other_models
from rayinfer.servers.served_model import ServedModel, base_models, names_of

VERSION = "1"  # the only one of every model

AnyModel = ServedModel | TensorModel


class ModelRepository:
    """Language models, which may change while we serve, and tensor models."""

    def __init__(self, language_models: Mapping[str, ServedModel], tensor_models: Sequence[TensorModel] = ()) -> None:
        self._language_models = language_models
        self._tensor_models = {model.name: model for model in tensor_models}
        self._unloaded: set[str] = set()

    def names(self, caller: Caller) -> list[str]:
        """List the models that a caller may use, also those that are not ready."""
        return [name for name in {**self._language_models, **self._tensor_models} if caller.may_use(name)]

    def find(self, caller: Caller, name: str, version: str = "") -> AnyModel:
        """Look up a model that a caller may use; raises UnknownModel, which names no other models."""
        model: AnyModel | None = self._language_models.get(name) or self._tensor_models.get(name)
        if model is None or not caller.may_use(name):
            served = names_of(self.names(caller)) or "none"
            error = UnknownModel(f"The model {name!r:.200} does not exist. Served here: {served}.", "model")
            raise hide_other_models(error, caller)
        if version not in ("", VERSION):
            raise UnknownModel(f"The model {name!r} has no version {version!r:.80}, only {VERSION!r}.", "version")
        return model

    def find_ready(self, caller: Caller, name: str, version: str = "") -> AnyModel:
        """Look up a model that takes requests; raises UnknownModel and NotReady."""
        model = self.find(caller, name, version)
        if reason := self._reason_not_ready(model):
            raise NotReady(f"The model {name!r} is not ready: {reason}.")
        return model

    def check_all_ready(self, caller: Caller = ANYONE) -> None:
        """Raise NotReady, naming what the caller may see, unless all models take requests that were not unloaded."""
        models: dict[str, AnyModel] = {**base_models(self._language_models), **self._tensor_models}
        reasons = {name: self._reason_not_ready(each) for name, each in models.items() if name not in self._unloaded}
        if not reasons and not self._unloaded:
            raise NotReady("No model is loaded yet.")
        if waiting := {name: reason for name, reason in reasons.items() if reason}:
            visible = [f"{name}: {reason}" for name, reason in waiting.items() if caller.may_see(name)]
            raise NotReady("; ".join(visible) or "Not all models are ready.")

    def index(self, caller: Caller, *, only_ready: bool = False) -> Iterator[dict[str, str]]:
        """Yield the entries of the repository's index, of the models that a caller may use."""
        for name in self.names(caller):
            reason = self._reason_not_ready(self.find(caller, name))
            if not (only_ready and reason):
                yield {
                    "name": name,
                    "version": VERSION,
                    "state": "UNAVAILABLE" if reason else "READY",
                    "reason": reason,
                }

    def load(self, caller: Caller, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model that was unloaded; raises NotSupported for language models and other configurations."""
        self._check_can_unload(caller, name)
        if parameters:
            raise NotSupported("Models are loaded as they are configured: parameters are not supported.", "parameters")
        self._unloaded.discard(name)

    def unload(self, caller: Caller, name: str) -> None:
        """Unload a model; raises NotSupported for language models."""
        self._check_can_unload(caller, name)
        self._unloaded.add(name)

    def _check_can_unload(self, caller: Caller, name: str) -> None:
        if not isinstance(name, str) or not name:
            raise InvalidParameter("the name of a model is missing", "model")
        if isinstance(self.find(caller, name), ServedModel):
            raise NotSupported(
                f"The language model {name!r} is loaded and unloaded by the service's operator only: "
                "see `rayinfer scale` and `rayinfer sleep`.",
                "model",
            )

    def _reason_not_ready(self, model: AnyModel) -> str:
        if isinstance(model, ServedModel):
            status = model.generator.status()
            return "" if status.ready else status.reason or "not ready"
        return "unloaded" if model.name in self._unloaded else ""

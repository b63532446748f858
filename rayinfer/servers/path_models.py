"""Models of requests whose protocol names none in the body: the only usable one, or the one that the path names."""

from collections.abc import Mapping

from fastapi import Request

from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import find_usable_model, usable_models
from rayinfer.servers.served_model import ServedModel

PATH_MODEL = "/models/{model:path}"


def find_path_model(request: Request, models: Mapping[str, ServedModel]) -> ServedModel:
    """Look up the model of a request by its path; raises UnknownModel, InvalidParameter or NotReady."""
    name: str | None = request.path_params.get("model")
    usable = usable_models(request, models)
    if name is None and len(usable) > 1:
        raise InvalidParameter(
            f"This path names no model, and several are served: {', '.join(usable)}. Put /models/NAME before the path.",
            "model",
            "model_required",
        )
    return find_usable_model(request, models, name)

"""Models of requests whose protocol names none in the body: the only one, or the one that the path names."""

from collections.abc import Mapping

from fastapi import Request

from rayinfer.errors import InvalidParameter
from rayinfer.servers.served_model import ServedModel, find_model

PATH_MODEL = "/models/{model:path}"


def find_path_model(request: Request, models: Mapping[str, ServedModel]) -> ServedModel:
    """Look up the model of a request by its path; raises UnknownModel, InvalidParameter or NotReady."""
    name: str | None = request.path_params.get("model")
    if name is None and len(models) > 1:
        raise InvalidParameter(
            f"This path names no model, and several are served: {', '.join(models)}. Put /models/NAME before the path.",
            "model",
            "model_required",
        )
    return find_model(models, name)

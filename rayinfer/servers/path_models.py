"""Models of requests whose protocol names none in the body: the only usable one, or the one that the path names."""

from collections.abc import Mapping

from fastapi import Request

from rayinfer.errors import InvalidParameter
from rayinfer.servers.caller import find_usable_model
from rayinfer.servers.served_model import MODEL_REQUIRED, ServedModel, Task

PATH_MODEL = "/models/{model:path}"


def find_path_model(request: Request, models: Mapping[str, ServedModel], *tasks: Task) -> ServedModel:
    """Look up the model of a request by its path, which does one of the tasks; raises the errors of `find_model`."""
    try:
        return find_usable_model(request, models, request.path_params.get("model"), *tasks)
    except InvalidParameter as error:
        if error.code != MODEL_REQUIRED:
            raise
        names = error.message.rpartition(": ")[2]
        raise InvalidParameter(
            f"This path names no model, and several are served: {names}. Put /models/NAME before the path.",
            "model",
            MODEL_REQUIRED,
        ) from None

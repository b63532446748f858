"""Largest body of a request by its path: images need more room than texts."""

import re
from collections.abc import Mapping

from starlette.types import Scope

from rayinfer.servers.access.open_paths import route_path
from rayinfer.servers.request_bounds import MAX_BODY_BYTES
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel, base_models

UPLOAD_PATH = "/v1/files"
_OTHER_FIELDS_BYTES = 2**16  # of a body with images or a file
_IMAGE_PATHS = re.compile(r"/|/v1/images/classify/?|/v1/models/.+:predict|/v2/models/.+/infer|/models/(?P<model>.+)")
_CHAT_PATHS = frozenset(
    (
        *("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"),
        *("/api/chat", "/api/generate"),
    )
)


class BodyLimits:
    """Limits over the models of a service, which may change while it serves."""

    def __init__(
        self, max_body_bytes: int, models: Mapping[str, ServedModel], limits: RequestLimits, max_file_bytes: int = 0
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._models = models
        self._max_upload_bytes = max_file_bytes + _OTHER_FIELDS_BYTES if max_file_bytes else max_body_bytes
        num_bytes = limits.max_images * limits.max_image_bytes * 4 // 3 + _OTHER_FIELDS_BYTES  # as base64
        self._max_image_body_bytes = max(max_body_bytes, min(num_bytes, MAX_BODY_BYTES))

    @property
    def largest(self) -> int:
        """Bytes that a body may have on some path: more where a model takes images."""
        takes_images = any("classify_images" in (model.tasks or ()) for model in base_models(self._models).values())
        return self._max_image_body_bytes if takes_images or self._has_image_chats else self._max_body_bytes

    def of(self, scope: Scope) -> int:
        """Return the bytes that a request's body may have."""
        path = route_path(scope)
        if path.rstrip("/") == UPLOAD_PATH:  # which goes to disk
            return self._max_upload_bytes
        if path.rstrip("/") in _CHAT_PATHS:
            return self._max_image_body_bytes if self._has_image_chats else self._max_body_bytes
        found = _IMAGE_PATHS.fullmatch(path)
        if found is None or (found["model"] is not None and found["model"] not in self._models):
            return self._max_body_bytes
        return self.largest

    @property
    def _has_image_chats(self) -> bool:
        return any(model.takes_images for model in self._models.values() if model.adapter is None)

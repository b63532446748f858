"""Images of an engine's prompts: encoded beside the steps, and given their places among the tokens."""

from concurrent.futures import Future

from rayinfer.engine.plan.step_plan import Int32Array, PromptImages
from rayinfer.engine.scheduling.placed_images import placed_images
from rayinfer.engine.scheduling.request_checks import checked_token_ids
from rayinfer.engine.worker.images.image_encoder import EncodedImage, ImageEncoder
from rayinfer.errors import InvalidParameter
from rayinfer.outputs import ImageEncodingStats
from rayinfer.protocols import GenerationRequest, ModelDescription


class EngineImages:
    """The encoder of a model that reads images; without one, images are refused."""

    def __init__(self, encoder: ImageEncoder | None, description: ModelDescription) -> None:
        self._encoder = encoder
        self._description = description

    def start(self, request: GenerationRequest) -> "Future[list[EncodedImage]] | None":
        """Begin to encode a request's images; None if nothing is to be computed.

        Raises RequestError for a request that could never finish: nothing is decoded for it.
        """
        if not request.images:
            return None
        encoder = self._existing()
        checked_token_ids(request, self._description)
        return encoder.start(request.images)

    def placed(self, request: GenerationRequest, token_ids: Int32Array) -> PromptImages | None:
        """Return the embeddings of images and their places in a prompt; None without images. Raises RequestError.

        Those that are not known are computed first.
        """
        if not request.images:
            return None
        encoder = self._existing()
        encoded = encoder.encode(request.images)
        grids = [image.grid for image in encoded if image.grid is not None]
        embeddings = tuple(image.embeddings for image in encoded)
        return placed_images(token_ids, embeddings, encoder.image_token_id, grids or None)

    @property
    def stats(self) -> ImageEncodingStats | None:
        """Counters as they are now; None without an encoder."""
        return None if self._encoder is None else self._encoder.stats

    def release(self) -> None:
        """Free the encoder's weights, and forget all embeddings."""
        if self._encoder is not None:
            self._encoder.release()

    def close(self) -> None:
        """Drop what waits to be encoded."""
        if self._encoder is not None:
            self._encoder.close()

    def _existing(self) -> ImageEncoder:
        if self._encoder is None:
            raise InvalidParameter(f"{self._description.name} takes no images", "messages")
        return self._encoder

"""Grammar, images and adapter of a request, which are compiled, encoded and read beside the steps."""

from concurrent.futures import Future
from typing import Any

from rayinfer.engine.loop.engine_adapters import EngineAdapters
from rayinfer.engine.loop.engine_images import EngineImages
from rayinfer.engine.loop.joined_futures import joined
from rayinfer.grammars.compiler import GrammarCompiler
from rayinfer.protocols import GenerationRequest


def start_needs(
    request: GenerationRequest,
    grammars: GrammarCompiler | None,
    images: EngineImages,
    adapters: EngineAdapters | None,
) -> Future[Any] | None:
    """Start all that a request needs before it is added; None if it is there. Raises RequestError for its images."""
    started: list[Future[Any] | None] = [images.start(request)]
    spec = request.sampling_params.structured_outputs
    if spec is not None and grammars is not None and not grammars.has(spec):
        started.append(grammars.start(spec))
    if request.adapter is not None and adapters is not None:
        started.append(adapters.start_using(request.adapter, request.adapter_folder))
    return joined(started)

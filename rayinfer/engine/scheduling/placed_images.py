"""Images in their places in a prompt, and the rotary positions that these change."""

from collections.abc import Sequence

import numpy as np

from rayinfer.engine.plan.step_plan import Float32Matrix, Int32Array, Int32Matrix, PromptImages
from rayinfer.errors import InvalidParameter
from rayinfer.images.shapes import PatchGrid


def placed_images(
    prompt: Int32Array,
    embeddings: tuple[Float32Matrix, ...],
    image_token_id: int,
    grids: Sequence[PatchGrid] | None = None,
) -> PromptImages:
    """Give images their places in a prompt; raises InvalidParameter unless it has a token for each embedding.

    `grids` are those of images whose tokens have three positions, which must stand in one piece each.
    """
    positions = np.flatnonzero(prompt == image_token_id).astype(np.int32)
    num_embeddings = sum(map(len, embeddings))
    if len(positions) != num_embeddings:
        raise InvalidParameter(
            f"the prompt has {len(positions)} tokens for images, whose sizes make {num_embeddings}: each image needs"
            " its own, and no other text may have them",
            "messages",
        )
    if grids is None:
        return PromptImages(positions=positions, embeddings=embeddings)
    starts = np.cumsum([0, *map(len, embeddings)])
    firsts, lasts = positions[starts[:-1]], positions[starts[1:] - 1]
    if (lasts - firsts != np.diff(starts) - 1).any():
        raise InvalidParameter("the tokens of an image must stand together in the prompt", "messages")
    rope_positions, rope_delta = _rope_positions(firsts.tolist(), grids)
    return PromptImages(
        positions=positions, embeddings=embeddings, rope_positions=rope_positions, rope_delta=rope_delta
    )


def _rope_positions(firsts: Sequence[int], grids: Sequence[PatchGrid]) -> tuple[Int32Matrix, int]:
    """Count time, height and width over a prompt up to its last image: [3, num_tokens], and the change behind it.

    Text counts all three on by one. An image has the next time, and its rows and columns count on from there; behind
    it all three go on after the highest of these.
    """
    parts: list[Int32Matrix] = []
    end = position = 0  # of the tokens so far; the next position
    for first, grid in zip(firsts, grids, strict=True):
        parts.append(np.broadcast_to(np.arange(position, position + first - end), (3, first - end)))
        position += first - end
        rows, columns = np.divmod(np.arange(grid.num_embeddings), grid.num_columns)
        parts.append(np.stack((np.zeros_like(rows), rows, columns)) + position)
        position += max(grid)
        end = first + grid.num_embeddings
    return np.concatenate(parts, 1).astype(np.int32), position - end

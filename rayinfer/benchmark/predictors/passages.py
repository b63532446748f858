"""Texts and images that everything is measured with: real English, and photographs or what stands for them."""

import io
import random
import re
from collections.abc import Sequence
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
from PIL import Image

from rayinfer.errors import ConfigError

SENTENCES, PARAGRAPHS = 0.6, 0.9  # of all passages, below these shares; the others are runs of paragraphs
ONE_TEXT = "How do I change the keyboard layout of the second monitor?"
NUM_CALIBRATION = 64
IMAGE_WIDTH, IMAGE_HEIGHT = 640, 480


def passages(count: int, seed: int = 0) -> list[str]:
    """Draw passages of mixed lengths from Python's language reference, about 50 tokens on average."""
    paragraphs = [" ".join(part.split()) for name in sorted(topics) for part in re.split(r"\n\s*\n", topics[name])]
    paragraphs = [each for each in paragraphs if len(each) >= 20 and sum(map(str.isalpha, each)) > 0.6 * len(each)]
    sentences = [part for each in paragraphs for part in re.split(r"(?<=[.!?])\s+(?=[A-Z])", each) if len(part) >= 20]
    draw, found = random.Random(seed), []
    for _ in range(count):
        kind = draw.random()
        if kind < SENTENCES:
            found.append(draw.choice(sentences))
        elif kind < PARAGRAPHS:
            found.append(draw.choice(paragraphs))
        else:
            start = draw.randrange(len(paragraphs) - 4)
            found.append(" ".join(paragraphs[start : start + draw.randint(2, 4)]))
    return found


def image_files(folder: Path | None, count: int, made: Path) -> list[Path]:
    """List images of a folder, over and over; without one, make smooth pictures in the folder `made`."""
    if folder is None:
        found: Sequence[Path] = [_make_image(made / f"{number}.jpg", number) for number in range(min(count, 16))]
    else:
        found = sorted(path for path in folder.iterdir() if path.suffix.lower() in (".jpg", ".jpeg", ".png", ".webp"))
    if not found:
        raise ConfigError(f"--images: {folder} has no images")
    return [found[number % len(found)] for number in range(count)]


def _make_image(path: Path, seed: int) -> Path:
    draw = np.random.default_rng(seed)
    small = Image.fromarray(draw.integers(0, 256, (IMAGE_HEIGHT // 16, IMAGE_WIDTH // 16, 3), np.uint8))
    content = io.BytesIO()
    small.resize((IMAGE_WIDTH, IMAGE_HEIGHT), Image.Resampling.BICUBIC).save(content, "JPEG", quality=90)
    path.write_bytes(content.getvalue())
    return path

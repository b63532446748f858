"""Separation of the evaluation texts of quantized models from the calibration texts."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from rayinfer.benchmark.studies.quality import texts
from rayinfer.benchmark.studies.quality.texts import count_shared_windows, quality_texts
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.optimization import calibration, smoothing
from rayinfer.optimization.calibration import own_text
from rayinfer.optimization.mode_checks import MEASURED
from support.tiny_models.real_models import real_model

pytestmark = pytest.mark.models


class Judged(NamedTuple):
    """Origin of a measured model, and the text that it is measured on."""

    folder_of: Callable[[str], Path]
    file: Path | None  # None: Python's documentation
    min_tokens: int


JUDGED = {
    "smollm2-135m": Judged(resolve_model, None, 16_000),
    "stories15m": Judged(real_model, Path(texts.__file__).with_name("stories.txt"), 4_500),
}


@pytest.mark.parametrize("purpose", [calibration, smoothing], ids=["four bits", "smoothing"])
@pytest.mark.parametrize("name", list(MEASURED))
def test_text_that_quality_is_measured_on_shares_no_32_tokens_with_text_of_calibration(name, purpose):
    judged = JUDGED[name]
    folder = judged.folder_of(name)
    chosen_with = own_text(folder, torch.bfloat16, purpose.NUM_SEQUENCES, purpose.MAX_LENGTH).tolist()
    judged_on = quality_texts(folder, judged.file, length=512, max_tokens=16_384).pieces
    assert sum(map(len, judged_on)) > judged.min_tokens
    assert count_shared_windows(chosen_with, chosen_with) > 0
    assert count_shared_windows(judged_on, chosen_with) == 0

"""Separation of the evaluation texts of quantized models from the calibration texts."""

import pytest
import torch

from rayinfer.benchmark.studies.quality.texts import count_shared_windows, quality_texts
from rayinfer.models.checkpoints.embedded_models import EMBEDDED_MODELS
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.optimization import calibration, smoothing
from rayinfer.optimization.calibration import own_text

pytestmark = pytest.mark.models


@pytest.mark.parametrize("purpose", [calibration, smoothing], ids=["four bits", "smoothing"])
@pytest.mark.parametrize("name", list(EMBEDDED_MODELS))
def test_text_that_quality_is_measured_on_shares_no_32_tokens_with_text_of_calibration(name, purpose):
    folder = resolve_model(name)
    chosen_with = own_text(folder, torch.bfloat16, purpose.NUM_SEQUENCES, purpose.MAX_LENGTH).tolist()
    judged_on = quality_texts(folder, None, length=512, max_tokens=16_384).pieces
    assert sum(map(len, judged_on)) > 16_000
    assert count_shared_windows(chosen_with, chosen_with) > 0
    assert count_shared_windows(judged_on, chosen_with) == 0

"""Inputs that every predictor can compute: for measurements, and to check that the model works."""

import numpy as np

from rayinfer.predictors.runner import Runner, RunnerItem


def probe_item(runner: Runner, num_tokens: int) -> RunnerItem | None:
    """Make an item of so many tokens at most, or a gray image; None for models of tensors of unknown shapes."""
    description, task = runner.description, runner.description.tasks[0]
    if runner.max_input_tokens:
        return RunnerItem(task=task, token_ids=[0] * min(num_tokens, runner.max_input_tokens))
    if description.image_size:
        size = description.image_size
        return RunnerItem(task=task, pixels=np.full((size, size, 3), 128, np.uint8))
    return None

"""A small classifier in one stage or two; both together have the parameters of the whole."""

import torch

SIZE = 6
NUM_LABELS = 3


class Encoding(torch.nn.Module):
    """First half; dropout is off in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(SIZE, 16)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.dropout(torch.tanh(self.first(values)))


class Head(torch.nn.Module):
    """Second half."""

    def __init__(self) -> None:
        super().__init__()
        self.second = torch.nn.Linear(16, NUM_LABELS)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.second(hidden).softmax(-1)


class Whole(torch.nn.Module):
    """Both halves."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.dropout, self.second = Encoding().first, torch.nn.Dropout(0.5), Head().second

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.second(self.dropout(torch.tanh(self.first(values)))).softmax(-1)


class Failing(Head):
    """Second half that cannot compute."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        raise ArithmeticError("of the stage")


def make_stage(stage: int, num_stages: int) -> torch.nn.Module:
    """Make a stage of the classifier."""
    return Whole() if num_stages == 1 else [Encoding, Head][stage]()


def failing_stage(stage: int, num_stages: int) -> torch.nn.Module:
    """Make a stage, of which the second fails."""
    return [Encoding, Failing][stage]()

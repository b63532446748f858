import torch

from rayinfer.layers.residual import PostNorm, PreNorm


class Tripled(torch.nn.Module):
    def forward(self, x, factor=3):
        return factor * x


class Halved(torch.nn.Module):
    def forward(self, x):
        return x / 2


def test_a_norm_before_the_part_leaves_the_sum_alone():
    x = torch.tensor([2.0, 8.0])
    assert PreNorm(Tripled(), Halved()).forward(x).tolist() == [5.0, 20.0]
    assert x.tolist() == [2.0, 8.0]


def test_a_norm_behind_the_sum_takes_all_of_it():
    x = torch.tensor([2.0, 8.0])
    assert PostNorm(Tripled(), Halved()).forward(x).tolist() == [4.0, 16.0]
    assert x.tolist() == [2.0, 8.0]


def test_a_part_gets_what_it_needs_beside_the_sum():
    assert PreNorm(Tripled(), Halved()).forward(torch.tensor([2.0]), 5).tolist() == [7.0]

import pytest
import torch

from rayinfer_kernels.reference.philox import philox4x32, uniform

# Known answers of Random123 for philox4x32-10: counter, key, words.
KNOWN_ANSWERS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return torch.tensor([[int(word, 16)] for word in text.split()])


def column(*values):
    return torch.tensor(values, dtype=torch.int64)


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN_ANSWERS)
def test_the_published_known_answers_come_out(counter, key, expected):
    assert torch.equal(philox4x32(words(counter), words(key)), words(expected))


def test_columns_are_independent_of_each_other():
    counters = torch.cat([words(counter) for counter, _, _ in KNOWN_ANSWERS], dim=1)
    keys = torch.cat([words(key) for _, key, _ in KNOWN_ANSWERS], dim=1)
    expected = torch.cat([words(answer) for _, _, answer in KNOWN_ANSWERS], dim=1)
    assert torch.equal(philox4x32(counters, keys), expected)


def test_a_uniform_number_is_the_first_word_over_two_to_the_32():
    drawn = uniform(column(0, -1), column(0, 7), column(0, 3))
    by_hand = philox4x32(torch.tensor([[7], [3], [0], [0]]), torch.tensor([[0xFFFFFFFF], [0xFFFFFFFF]]))
    assert drawn.dtype == torch.float64
    assert drawn.tolist() == [0x6627E8D5 / 2**32, by_hand[0].item() / 2**32]


def test_the_seed_enters_low_word_first():
    drawn = uniform(column(0x299F31D0_A4093822), column(5), column(2))
    by_hand = philox4x32(torch.tensor([[5], [2], [0], [0]]), words("a4093822 299f31d0"))
    assert drawn.item() == by_hand[0].item() / 2**32


def test_numbers_of_one_request_are_spread_evenly():
    positions = torch.arange(20_000)
    drawn = uniform(torch.full_like(positions, 42), positions, torch.zeros_like(positions))
    histogram = torch.histc(drawn, bins=20, min=0.0, max=1.0)
    assert ((histogram - 1000) ** 2 / 1000).sum() < 43.8  # chi-square, 19 degrees of freedom, p = 0.001
    lag_one = torch.corrcoef(torch.stack((drawn[:-1], drawn[1:])))[0, 1]
    assert abs(lag_one) < 0.03

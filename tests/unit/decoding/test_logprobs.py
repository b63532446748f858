import pytest
import torch

from rayinfer.decoding.logprobs import gather_logprobs

VOCAB = 1003


def logits_of(seed, num_lines=6, vocab_size=VOCAB, spread=4.0):
    return torch.randn(num_lines, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def chosen_of(seed, num_lines=6, vocab_size=VOCAB):
    return torch.randint(vocab_size, (num_lines,), generator=torch.Generator().manual_seed(seed))


def best_by_hand(line, num_top):
    """Ids by falling logit, of equals the lowest first."""
    return sorted(range(len(line)), key=lambda token_id: (-line[token_id], token_id))[:num_top]


@pytest.mark.parametrize("spread", [0.1, 4.0, 40.0])
@pytest.mark.parametrize("num_top", [0, 1, 5, 20])
def test_log_probabilities_are_those_of_log_softmax(num_top, spread):
    logits, chosen = logits_of(1, spread=spread), chosen_of(2)
    scores = gather_logprobs(logits, chosen, num_top)
    expected = logits.double().log_softmax(-1)
    assert scores.token_ids.shape == scores.logprobs.shape == (6, 1 + num_top)
    assert torch.equal(scores.token_ids[:, 0], chosen)
    torch.testing.assert_close(scores.logprobs, expected.gather(1, scores.token_ids).float(), atol=1e-5, rtol=0)


def test_listed_tokens_have_the_very_values_of_the_likeliest():
    logits, chosen = logits_of(1), chosen_of(2)
    whole = gather_logprobs(logits, chosen, VOCAB)
    listed = torch.tensor([[3, 900], [3, 3], [0, 1], [7, 8], [1002, 5], [4, 4]])
    scores = gather_logprobs(logits, chosen, 2, listed)
    assert torch.equal(scores.token_ids[:, 3:], listed)
    for line in range(len(logits)):
        by_id = dict(zip(whole.token_ids[line].tolist(), whole.logprobs[line].tolist(), strict=True))
        assert scores.logprobs[line].tolist() == [by_id[each] for each in scores.token_ids[line].tolist()]
    torch.testing.assert_close(scores.logprobs[:, 3:], logits.log_softmax(-1).gather(1, listed), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rounding", [None, torch.bfloat16], ids=["few ties", "many ties"])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_top", [1, 7, 20])
def test_the_most_likely_come_best_first_and_of_equals_the_lowest_id(seed, rounding, num_top):
    logits = logits_of(seed) if rounding is None else logits_of(seed, spread=0.5).to(rounding)
    scores = gather_logprobs(logits, chosen_of(seed), num_top)
    assert scores.token_ids[:, 1:].tolist() == [best_by_hand(line, num_top) for line in logits.tolist()]


@pytest.mark.parametrize("seed", range(4))
def test_a_rank_is_the_place_in_that_order(seed):
    logits, chosen = logits_of(seed, spread=0.5).bfloat16(), chosen_of(seed)
    expected = [
        best_by_hand(line, VOCAB).index(token_id) + 1
        for line, token_id in zip(logits.tolist(), chosen.tolist(), strict=True)
    ]
    assert gather_logprobs(logits, chosen, 0).ranks.tolist() == expected


def test_in_a_line_of_equals_ids_are_ranks():
    scores = gather_logprobs(torch.zeros(1, VOCAB), torch.tensor([9]), 4)
    assert scores.token_ids.tolist() == [[9, 0, 1, 2, 3]]
    assert scores.ranks.tolist() == [10]


def test_what_cannot_come_has_no_probability():
    logits = torch.full((1, VOCAB), float("-inf"))
    logits[0, [3, 5]] = torch.tensor([1.0, 2.0])
    scores = gather_logprobs(logits, torch.tensor([3]), 3)
    assert scores.token_ids.tolist() == [[3, 5, 3, 0]]
    torch.testing.assert_close(scores.logprobs[0, :3].exp().double()[1:].sum().item(), 1.0, atol=1e-6, rtol=0)
    assert scores.logprobs[0, 3] == float("-inf")


def test_more_than_the_vocabulary_is_the_vocabulary():
    scores = gather_logprobs(logits_of(1, vocab_size=5), chosen_of(1, vocab_size=5), 20)
    assert scores.token_ids.shape == (6, 6)
    assert all(sorted(line) == [0, 1, 2, 3, 4] for line in scores.token_ids[:, 1:].tolist())


@pytest.mark.parametrize("vocab_size", [256, 1003, 70_001])
def test_a_rows_bits_do_not_depend_on_other_rows_or_threads(vocab_size):
    logits, chosen = logits_of(7, 33, vocab_size), chosen_of(8, 33, vocab_size)
    threads = torch.get_num_threads()
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            together = gather_logprobs(logits, chosen, 5)
            for first, last in ((0, 1), (17, 18), (3, 16)):
                part = gather_logprobs(logits[first:last], chosen[first:last], 5)
                assert torch.equal(part.logprobs, together.logprobs[first:last])
                assert torch.equal(part.token_ids, together.token_ids[first:last])
                assert torch.equal(part.ranks, together.ranks[first:last])
            if num_threads == 1:
                on_one_thread = together
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(on_one_thread.logprobs, together.logprobs)


def test_the_logits_stay_as_they_are():
    logits = logits_of(3, vocab_size=512)
    before = logits.clone()
    gather_logprobs(logits, chosen_of(3, vocab_size=512), 5)
    assert torch.equal(logits, before)


def test_many_lines_have_the_values_of_each_alone():
    num_lines = 2300  # a CPU takes about 1,045 of this vocabulary at a time
    logits, chosen = logits_of(1, num_lines), chosen_of(2, num_lines)
    lines = torch.randperm(num_lines, generator=torch.Generator().manual_seed(3))[:2200]
    listed = torch.stack([chosen_of(4, num_lines), chosen_of(5, num_lines)], dim=1)[:2200]
    together = gather_logprobs(logits, chosen[:2200], 3, listed, lines=lines)
    for line in (0, 1044, 1045, 1046, 2090, 2199):
        alone = gather_logprobs(logits[lines[line]][None], chosen[line][None], 3, listed[line][None])
        assert torch.equal(together.token_ids[line], alone.token_ids[0])
        assert torch.equal(together.logprobs[line], alone.logprobs[0])
        assert torch.equal(together.ranks[line], alone.ranks[0])
    every = gather_logprobs(logits, chosen, 0)
    assert every.ranks.tolist() == [int((row > row[own]).sum()) + 1 for row, own in zip(logits, chosen, strict=True)]

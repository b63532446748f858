import numpy as np
import pytest
import torch
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from rayinfer.decoding.penalties import PenaltyHistory, PenaltyStrengths

VOCAB = 300


@pytest.fixture
def history():
    return PenaltyHistory(VOCAB, torch.device("cpu"))


def ids(*token_ids):
    return np.array(token_ids, dtype=np.int64)


def strengths(repetition=(1.0,), presence=(0.0,), frequency=(0.0,)):
    return PenaltyStrengths(
        repetition=torch.tensor(repetition), presence=torch.tensor(presence), frequency=torch.tensor(frequency)
    )


def scores_of(seed, num_rows=1):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 4


def penalized(history, scores, slot, **kinds):
    result = scores.clone()
    history.penalize_(result, torch.tensor([0]), ids(slot), strengths(**kinds))
    return result


@pytest.mark.parametrize("penalty", [0.3, 0.9, 1.1, 2.0, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_repetition_penalty_is_that_of_transformers(history, penalty, seed):
    generator = np.random.default_rng(seed)
    prompt, output = generator.integers(0, VOCAB, 40), generator.integers(0, VOCAB, 20)
    scores = scores_of(seed)
    seen = torch.from_numpy(np.concatenate((prompt, output)))[None]
    expected = RepetitionPenaltyLogitsProcessor(penalty)(seen, scores)
    actual = penalized(history, scores, history.take(prompt, output), repetition=(penalty,))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("presence", [-2.0, 0.0, 0.7])
@pytest.mark.parametrize("frequency", [-1.0, 0.0, 0.4])
def test_presence_counts_an_output_token_once_and_frequency_every_time(history, presence, frequency):
    output = [5, 5, 5, 9, 0, 299]
    expected = scores_of(1)
    for token_id in output:
        expected[0, token_id] -= frequency
    for token_id in set(output):
        expected[0, token_id] -= presence
    slot = history.take(ids(7, 5, 8), ids(*output))
    actual = penalized(history, scores_of(1), slot, presence=(presence,), frequency=(frequency,))
    torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)


def test_repetition_comes_before_presence_and_frequency(history):
    scores = torch.full((1, VOCAB), 4.0)
    slot = history.take(ids(3), ids(4, 4))
    actual = penalized(history, scores, slot, repetition=(2.0,), presence=(0.5,), frequency=(0.25,))
    assert actual[0, 2:6].tolist() == [4.0, 2.0, 1.0, 4.0]


def test_recorded_tokens_weigh_like_those_a_request_came_with(history):
    grown, came = history.take(ids(1, 2), ids()), history.take(ids(1, 2), ids(8, 9, 8))
    for token_id in (8, 9, 8):
        history.reserve(ids(grown))
        history.record(ids(grown), torch.tensor([token_id]), torch.tensor([True]))
    kinds = {"repetition": (1.5,), "presence": (0.3,), "frequency": (0.2,)}
    assert torch.equal(
        penalized(history, scores_of(2), grown, **kinds), penalized(history, scores_of(2), came, **kinds)
    )


def test_a_token_that_is_not_valid_is_not_counted(history):
    slot = history.take(ids(), ids())
    history.reserve(ids(slot))
    history.record(ids(slot), torch.tensor([0]), torch.tensor([False]))
    assert torch.equal(penalized(history, scores_of(3), slot, repetition=(2.0,), presence=(2.0,)), scores_of(3))


def test_rows_are_penalized_each_by_its_own_history_and_strength(history):
    slots = [history.take(ids(1), ids(*range(50))), history.take(ids(2), ids()), history.take(ids(), ids(3, 3))]
    scores = scores_of(4, num_rows=5)
    kinds = {"repetition": (1.2, 3.0, 1.0), "presence": (0.0, 1.0, -1.0), "frequency": (0.1, 0.0, 2.0)}
    together = scores.clone()
    history.penalize_(together, torch.tensor([4, 1, 2]), ids(*slots), strengths(**kinds))
    expected = scores.clone()
    for index, row in enumerate([4, 1, 2]):
        alone = {kind: (values[index],) for kind, values in kinds.items()}
        expected[row] = penalized(history, scores[row : row + 1], slots[index], **alone)[0]
    assert torch.equal(together, expected)


def test_a_released_slot_is_used_again_and_remembers_nothing(history):
    old = history.take(ids(*range(100)), ids(*range(50, 150)))
    num_slots = history.num_slots
    history.release(old)
    reused = history.take(ids(60), ids(0, 149))
    assert history.num_slots == num_slots
    fresh = PenaltyHistory(VOCAB, torch.device("cpu"))
    kinds = {"repetition": (2.0,), "frequency": (2.0,)}
    expected = penalized(fresh, scores_of(5), fresh.take(ids(60), ids(0, 149)), **kinds)
    assert torch.equal(penalized(history, scores_of(5), reused, **kinds), expected)


def test_a_short_history_beside_a_long_one_leaves_strangers_alone(history):
    history.release(history.take(ids(0), ids(0)))
    short, long = history.take(ids(7), ids()), history.take(ids(*range(50)), ids())
    together = torch.ones(2, VOCAB)
    history.penalize_(together, torch.tensor([0, 1]), ids(short, long), strengths((2.0, 2.0), (0.0, 0.0), (1.0, 1.0)))
    assert (together[0] != 1).nonzero().flatten().tolist() == [7]


def test_slots_grow_with_demand_and_keep_their_contents(history):
    slots = [history.take(ids(n), ids(n + 1)) for n in range(9)]
    assert len(set(slots)) == 9
    for n, slot in enumerate(slots):
        changed = penalized(history, torch.ones(1, VOCAB), slot, repetition=(2.0,)) != 1
        assert changed[0].nonzero().flatten().tolist() == [n, n + 1]


def test_a_history_longer_than_the_first_capacity_is_kept_whole(history):
    slot = history.take(ids(*range(200)), ids())
    for token_id in range(100, 300):
        history.reserve(ids(slot))
        history.record(ids(slot), torch.tensor([token_id]), torch.tensor([True]))
    changed = penalized(history, torch.ones(1, VOCAB), slot, repetition=(2.0,), frequency=(1.0,))
    assert changed[0].tolist() == [0.5] * 100 + [-0.5] * 200


def test_ids_outside_the_vocabulary_are_ignored(history):
    slot = history.take(ids(VOCAB, VOCAB + 7), ids(VOCAB, 4))
    changed = penalized(history, torch.ones(1, VOCAB), slot, frequency=(1.0,))[0] != 1
    assert changed.nonzero().flatten().tolist() == [4]

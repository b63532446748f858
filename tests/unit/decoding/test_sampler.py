from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from rayinfer.decoding.sampler import Sampler, sampling_tensors
from rayinfer.decoding.sampling_table import SamplingTable
from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams
from rayinfer_kernels.reference.philox import uniform
from support.kernels.sampler_requests import (
    EOS,
    MIXED,
    MIXED_BY_NAME,
    MIXED_NAMES,
    VOCAB,
    draw_alone,
    enter,
    logits_of,
    sample,
)

EVEN = list(range(0, VOCAB, 2))
BAD = [[4], [595, 30], [588, 595, 32], [588, 34], [36]]  # the histories below end in 588 and 595


def drawn_by_the_book(logits, processors, token_ids, *, seed, position, choice=0):
    """Filter with transformers, then the first id whose cumulated probability exceeds the request's number."""
    scores = LogitsProcessorList(processors)(torch.tensor([token_ids]), logits.float())
    ends = scores.double().softmax(-1)[0].cumsum(0)
    share = uniform(torch.tensor([seed]), torch.tensor([position]), torch.tensor([choice])).item()
    return int((ends <= share * ends[-1]).sum())


# What is chosen


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize(
    ("params", "processors"),
    [
        ({}, []),
        ({"temperature": 0.6}, [TemperatureLogitsWarper(0.6)]),
        ({"top_k": 7}, [TopKLogitsWarper(7)]),
        ({"top_k": 333}, [TopKLogitsWarper(333)]),
        ({"top_p": 0.7}, [TopPLogitsWarper(0.7)]),
        ({"min_p": 0.15}, [MinPLogitsWarper(0.15)]),
        ({"min_p": 1.0}, [MinPLogitsWarper(1.0)]),
        ({"typical_p": 0.3}, [TypicalLogitsWarper(0.3)]),
        ({"min_p": 0.05, "typical_p": 0.7}, [MinPLogitsWarper(0.05), TypicalLogitsWarper(0.7)]),
        (
            {"logit_bias": {7: 9.0, 8: -4.0}, "repetition_penalty": 3.0},
            [SequenceBiasLogitsProcessor([[[7], 9.0], [[8], -4.0]]), RepetitionPenaltyLogitsProcessor(3.0)],
        ),
        ({"allowed_token_ids": EVEN}, [PrefixConstrainedLogitsProcessor(lambda batch, ids: EVEN, 1)]),
        ({"bad_token_sequences": BAD}, [NoBadWordsLogitsProcessor(BAD)]),
        (
            {
                "logit_bias": {7: 9.0, 8: -4.0},
                "repetition_penalty": 1.8,
                "bad_token_sequences": BAD,
                "allowed_token_ids": EVEN,
                "temperature": 1.7,
                "top_k": 90,
                "top_p": 0.8,
                "min_p": 0.05,
                "typical_p": 0.9,
            },
            [
                SequenceBiasLogitsProcessor([[[7], 9.0], [[8], -4.0]]),
                RepetitionPenaltyLogitsProcessor(1.8),
                NoBadWordsLogitsProcessor(BAD),
                PrefixConstrainedLogitsProcessor(lambda batch, ids: EVEN, 1),
                TemperatureLogitsWarper(1.7),
                TopKLogitsWarper(90),
                TopPLogitsWarper(0.8),
                MinPLogitsWarper(0.05),
                TypicalLogitsWarper(0.9),
            ],
        ),
    ],
    ids=[
        *("plain", "temperature", "small top_k", "large top_k", "top_p", "min_p", "largest min_p"),
        *("typical_p", "min_p, typical_p"),
        *("bias before repetition", "allowed", "bad sequences", "all"),
    ],
)
def test_a_draw_is_the_one_that_transformers_probabilities_give(params, processors, seed):
    logits = logits_of(seed)
    history = list(range(0, 600, 7))
    token_id = draw_alone(logits, SamplingParams(**params), seed=seed, prompt=history, position=len(history))
    assert token_id == drawn_by_the_book(logits, processors, history, seed=seed, position=len(history))


@pytest.mark.parametrize(
    "params",
    [{}, {"top_k": 60}, {"top_p": 0.9}, {"typical_p": 0.6}, {"min_p": 0.1}, {"min_p": 0.02, "typical_p": 0.9}],
    ids=["plain", "top_k", "top_p", "typical_p", "min_p", "min_p, typical_p"],
)
def test_tokens_are_drawn_as_often_as_their_probability_says(params):
    num_rows, num_steps = 500, 40
    sampler = Sampler(num_rows, 64)
    for row in range(num_rows):
        enter(sampler, row, SamplingParams(**params), seed=row * 7919 - 5)
    logits = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
    counts = torch.zeros(64)
    for step in range(num_steps):
        drawn = sampler.sample(logits.expand(num_rows, -1), np.arange(num_rows), np.full(num_rows, 3 + step))
        counts += torch.bincount(drawn.token_ids, minlength=64)
    warpers = {
        "top_k": TopKLogitsWarper,
        "top_p": TopPLogitsWarper,
        "min_p": MinPLogitsWarper,
        "typical_p": TypicalLogitsWarper,
    }
    scores = LogitsProcessorList([warpers[name](value) for name, value in params.items()])(torch.zeros(1, 1), logits)
    expected = scores.softmax(-1)[0] * num_rows * num_steps
    kept = expected > 0
    assert counts[~kept].sum() == 0
    chi_square = ((counts - expected) ** 2 / expected)[kept].sum()
    assert chi_square < 104  # 63 degrees of freedom, p = 0.001; fewer are stricter still


def test_greedy_rows_take_the_best_token_and_the_lowest_id_of_equals():
    sampler = Sampler(3, VOCAB)
    for row in range(3):
        enter(sampler, row, SamplingParams(temperature=0.0))
    logits = logits_of(0, num_rows=3)
    logits[1, [600, 31, 650]] = 50.0
    assert sample(sampler, logits, [0, 1, 2], [3, 3, 3]) == [logits[0].argmax(), 31, logits[2].argmax()]


def test_greedy_rows_keep_the_lowest_id_of_equals_in_a_mixed_batch():
    sampler = Sampler(2, VOCAB)
    enter(sampler, 0, SamplingParams(temperature=0.0, presence_penalty=1.0), outputs=(600,))
    enter(sampler, 1, SamplingParams())
    logits = logits_of(0, num_rows=2)
    logits[0, [600, 31, 650]] = 50.0
    assert sample(sampler, logits, [0, 1], [4, 3])[0] == 31


@pytest.mark.parametrize("params", MIXED, ids=MIXED_NAMES)
def test_bfloat16_logits_give_the_token_of_the_same_logits_in_float32(params):
    logits = logits_of(5).bfloat16()
    assert draw_alone(logits, params) == draw_alone(logits.float(), params)


# Penalties and the ban on end tokens


def test_penalties_follow_the_tokens_chosen_so_far():
    sampler = Sampler(1, VOCAB)
    enter(sampler, 0, SamplingParams(temperature=0.0, frequency_penalty=1.0))
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 6]] = torch.tensor([3.5, 2.0])
    assert [sample(sampler, logits, [0], [3 + step])[0] for step in range(6)] == [5, 5, 6, 5, 6, 5]


def test_a_new_request_inherits_nothing_from_the_row_before():
    sampler = Sampler(1, VOCAB)
    greedy = SamplingParams(temperature=0.0, presence_penalty=2.0, repetition_penalty=2.0, min_tokens=9)
    logits = torch.zeros(1, VOCAB)
    logits[0, [EOS, 5]] = torch.tensor([4.0, 3.5])
    enter(sampler, 0, greedy, prompt=(5, 6), outputs=(5,))
    assert sample(sampler, logits, [0], [3]) != [EOS]
    sampler.remove_row(0)
    enter(sampler, 0, SamplingParams(temperature=0.0, presence_penalty=0.1), prompt=(1,))
    assert sample(sampler, logits, [0], [1]) == [EOS]
    enter(sampler, 0, SamplingParams(temperature=0.0), prompt=(1,))
    assert sample(sampler, logits, [0], [1]) == [EOS]


def test_a_new_request_with_rules_inherits_none_of_those_before():
    sampler = Sampler(1, VOCAB)
    greedy = SamplingParams(temperature=0.0)
    enter(sampler, 0, replace(greedy, logit_bias={7: 50.0}, bad_token_sequences=[[5], [12, 6]]))
    enter(sampler, 0, replace(greedy, allowed_token_ids=[5, 6, 7, 8], logit_bias={8: 1.0}))
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 6, 7, 8]] = torch.tensor([4.0, 3.0, 2.0, 1.0])
    assert sample(sampler, logits, [0], [3]) == [5]
    enter(sampler, 0, replace(greedy, bad_token_sequences=[[5]]))
    assert sample(sampler, logits, [0], [3]) == [6]


@pytest.mark.parametrize("min_tokens", [0, 1, 4])
def test_end_tokens_are_banned_as_long_as_transformers_bans_them(min_tokens):
    prompt, end_ids = [7, 8, 9, 10], [EOS, 30]
    processor = MinNewTokensLengthLogitsProcessor(len(prompt), min_tokens, end_ids)
    params = SamplingParams(temperature=0.0, min_tokens=min_tokens)
    logits = logits_of(1)
    logits[0, end_ids] = 40.0
    for num_outputs in range(6):
        sequence = prompt + [50] * num_outputs
        expected = processor(torch.tensor([sequence]), logits).argmax().item()
        request = {"prompt": prompt, "outputs": [50] * num_outputs, "end_token_ids": end_ids}
        assert draw_alone(logits, params, position=len(sequence), **request) == expected


def test_the_ban_on_end_tokens_holds_for_sampled_rows_too():
    logits = torch.zeros(1, VOCAB)
    logits[0, EOS] = 30.0
    banned = {draw_alone(logits, SamplingParams(min_tokens=1), seed=seed) for seed in range(20)}
    assert EOS not in banned
    assert draw_alone(logits, SamplingParams(min_tokens=1), position=4, outputs=(9,)) == EOS


def test_a_call_that_raises_counts_nothing():
    sampler, witness = Sampler(2, VOCAB), Sampler(2, VOCAB)
    for each in (sampler, witness):
        enter(each, 0, SamplingParams(temperature=0.0, frequency_penalty=2.0))
    with pytest.raises(InvalidParameter, match="hold no request"):
        sampler.sample(logits_of(0, num_rows=2), np.array([0, 1]), np.array([3, 3]))
    with pytest.raises(InvalidParameter, match=r"\(1, 700\), got \(1, 699\)"):
        sampler.sample(logits_of(0)[:, 1:], np.array([0]), np.array([3]))
    logits = logits_of(0, spread=1.0)
    assert generate_same(sampler, logits) == generate_same(witness, logits)


def generate_same(sampler, logits):
    return [sample(sampler, logits, [0], [3 + step])[0] for step in range(5)]


def test_the_logits_stay_as_they_are():
    sampler = Sampler(len(MIXED), VOCAB)
    for row, params in enumerate(MIXED):
        enter(sampler, row, params, outputs=(1, 2))
    logits = logits_of(0, num_rows=len(MIXED))
    before = logits.clone()
    sample(sampler, logits, range(len(MIXED)), [5] * len(MIXED))
    assert torch.equal(logits, before)


# Tokens favored, allowed and forbidden


def test_bad_sequences_follow_the_tokens_chosen_so_far():
    sampler = Sampler(1, VOCAB)
    enter(sampler, 0, SamplingParams(temperature=0.0, bad_token_sequences=[[12, 5], [5, 5], [6, 5, 5], [5, 6, 5, 6]]))
    logits = torch.zeros(1, VOCAB)
    logits[0, [5, 6, 7]] = torch.tensor([3.0, 2.0, 1.0])
    assert [sample(sampler, logits, [0], [3 + step])[0] for step in range(8)] == [6, 5, 6, 5, 7, 5, 6, 5]


def test_a_bias_is_felt_by_greedy_and_by_sampled_rows():
    logits = logits_of(0)
    for temperature in (0.0, 1.0):
        assert draw_alone(logits, SamplingParams(temperature=temperature, logit_bias={123: 100.0})) == 123
    banned = SamplingParams(temperature=0.0, logit_bias={logits[0].argmax().item(): -100.0})
    assert draw_alone(logits, banned) == logits[0].topk(2).indices[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "rules",
    [
        {"allowed_token_ids": [EOS], "min_tokens": 1},
        {"allowed_token_ids": [EOS, 7, 8], "bad_token_sequences": [[8], [12, 7]], "min_tokens": 1},
        {
            "allowed_token_ids": [EOS, 7],
            "bad_token_sequences": [[12, 7]],
            "min_tokens": 1,
            "typical_p": 0.5,
            "top_p": 0.5,
        },
    ],
    ids=["end token too early", "bad sequences", "bad sequence and truncation"],
)
def test_a_row_whose_rules_leave_nothing_is_invalid_and_hurts_no_other(rules, temperature):
    sampler = Sampler(3, VOCAB)
    for row in (0, 2):
        enter(sampler, row, SamplingParams(), seed=row)
    enter(sampler, 1, SamplingParams(temperature=temperature, logprobs=2, **rules))
    logits = logits_of(6, num_rows=3)
    sampled = sampler.sample(logits, np.arange(3), np.full(3, 3))
    assert sampled.is_invalid.tolist() == [False, True, False]
    assert sampled.token_ids[1] == 0
    for row in (0, 2):
        assert sampled.token_ids[row] == draw_alone(logits[row : row + 1], SamplingParams(), seed=row)


# Log probabilities


def test_logprobs_are_those_of_unchanged_logits():
    sampler = Sampler(4, VOCAB)
    enter(sampler, 0, SamplingParams(logprobs=0))
    enter(sampler, 1, SamplingParams())
    enter(sampler, 2, MIXED_BY_NAME["all"])
    enter(sampler, 3, SamplingParams(temperature=0.0, allowed_token_ids=[9], logprobs=5))
    logits = logits_of(3, num_rows=4)
    sampled = sampler.sample(logits, np.array([2, 1, 3, 0]), np.full(4, 3))
    assert sampled.scored_lines.tolist() == [0, 2, 3]
    assert sampled.logprobs.token_ids[:, 0].tolist() == sampled.token_ids[[0, 2, 3]].tolist()
    expected = logits[[0, 2, 3]].log_softmax(-1)
    assert torch.equal(sampled.logprobs.token_ids[:, 1:], expected.topk(5).indices)
    told = expected.gather(1, sampled.logprobs.token_ids)
    torch.testing.assert_close(sampled.logprobs.logprobs, told, atol=1e-5, rtol=0)
    assert torch.equal(sampled.logprobs.ranks, (expected > told[:, :1]).sum(-1) + 1)
    assert sampled.logprobs.ranks[1] > 1


def test_no_logprobs_without_a_request_for_them():
    sampler = Sampler(1, VOCAB)
    enter(sampler, 0, SamplingParams())
    sampled = sampler.sample(logits_of(0), np.array([0]), np.array([3]))
    assert sampled.logprobs is None
    assert not len(sampled.scored_lines)


# Bad rows and bad calls


@pytest.mark.parametrize("spoil", ["one nan", "all nan", "all -inf", "+inf"])
@pytest.mark.parametrize("params", MIXED, ids=MIXED_NAMES)
def test_a_spoilt_row_is_reported_and_hurts_no_other(params, spoil):
    settings = [params, *MIXED]
    good, sampler = Sampler(len(settings), VOCAB), Sampler(len(settings), VOCAB)
    for each in (good, sampler):
        for row, each_params in enumerate(settings):
            enter(each, row, each_params, seed=row)
    logits = logits_of(4, num_rows=len(settings))
    spoilt = logits.clone()
    spoilt[0, 30 if spoil in ("one nan", "+inf") else slice(None)] = float(spoil.split()[-1].removeprefix("+"))
    rows, positions = np.arange(len(settings)), np.full(len(settings), 3)
    sampled = sampler.sample(spoilt, rows, positions)
    assert sampled.is_invalid.tolist() == [True] + [False] * len(MIXED)
    assert sampled.token_ids[0] == 0
    assert torch.equal(sampled.token_ids[1:], good.sample(logits, rows, positions).token_ids[1:])


def test_an_empty_batch_gives_no_tokens():
    sampled = Sampler(2, VOCAB).sample(torch.zeros(0, VOCAB), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    assert sampled.token_ids.shape == sampled.is_invalid.shape == (0,)


def test_leaving_twice_gives_a_history_back_only_once():
    sampler = Sampler(3, VOCAB)
    frequent = SamplingParams(temperature=0.0, frequency_penalty=2.0)
    enter(sampler, 0, frequent)
    sampler.remove_row(0)
    sampler.remove_row(0)
    enter(sampler, 1, frequent, outputs=(5,))
    enter(sampler, 2, frequent, outputs=(6,))
    logits = torch.zeros(2, VOCAB)
    logits[:, [5, 6]] = torch.tensor([1.0, 1.5])
    assert sample(sampler, logits, [1, 2], [4, 4]) == [6, 5]


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_refused(row):
    with pytest.raises(InvalidParameter, match=f"from 0 to 1, got {row}"):
        enter(Sampler(2, VOCAB), row, SamplingParams())


@pytest.mark.parametrize("num_rows", [1, 2, 5])
def test_what_rows_are_drawn_by_lies_at_multiples_of_16_bytes_whatever_their_number(num_rows):
    table, rows = SamplingTable(8, VOCAB), np.arange(num_rows)
    for row in rows:
        table.fill(row, SamplingParams(top_p=0.9), seed=40 + int(row), choice=0, min_end_position=0, penalty_slot=None)
    numbers = sampling_tensors(table.at(rows), rows + 7, np.zeros(num_rows, np.bool_), torch.device("cpu"))
    assert {(column.data_ptr() - numbers.seed.data_ptr()) % 16 for column in numbers} == {0}
    assert numbers.seed.tolist() == [40 + row for row in rows]
    assert numbers.position.tolist() == [7 + row for row in rows]
    assert numbers.top_p.tolist() == [0.9] * num_rows

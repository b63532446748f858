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

from rayinfer.decoding.philox import uniform
from rayinfer.decoding.sampler import Sampler
from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams

VOCAB = 700  # not a whole number of blocks
EOS = 2

MIXED_BY_NAME = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "small top_k": SamplingParams(temperature=0.7, top_k=5),
    "top_p": SamplingParams(temperature=1.3, top_p=0.8),
    "top_k, top_p, min_p": SamplingParams(top_k=300, top_p=0.95, min_p=0.02),
    "min_p": SamplingParams(min_p=0.1),
    "repetition": SamplingParams(repetition_penalty=1.3, top_k=40),
    "greedy penalised": SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    "frequency, min_tokens": SamplingParams(frequency_penalty=-0.5, top_p=0.6, min_tokens=4),
    "greedy, min_tokens": SamplingParams(temperature=0.0, min_tokens=10),
    "large top_k": SamplingParams(temperature=2.0, top_k=200),
    "typical_p": SamplingParams(typical_p=0.4),
    "min_p, typical_p": SamplingParams(temperature=1.5, min_p=0.03, typical_p=0.8),
    "greedy, bias": SamplingParams(temperature=0.0, logit_bias={50: 6.5, 51: 6.0, 600: -100.0}),
    "allowed": SamplingParams(allowed_token_ids=[699, 30, 31, 32, 5, 40]),
    "bad sequences": SamplingParams(
        temperature=0.0, allowed_token_ids=[20, 21, 30], bad_token_sequences=[[20, 21, 30], [21, 20, 21], [30, 30]]
    ),
    "all": SamplingParams(
        temperature=0.9,
        top_k=90,
        top_p=0.9,
        min_p=0.01,
        typical_p=0.9,
        repetition_penalty=1.2,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={20: 5.0, 21: 5.0, 22: 5.0, 23: -3.0},
        allowed_token_ids=range(20, 60),
        bad_token_sequences=[[20, 21], [21, 22], [22, 20], [50]],
        min_tokens=6,
        logprobs=3,
    ),
}
EVEN = list(range(0, VOCAB, 2))
BAD = [[4], [595, 30], [588, 595, 32], [588, 34], [36]]  # the histories below end in 588 and 595
MIXED_NAMES = list(MIXED_BY_NAME)
MIXED = list(MIXED_BY_NAME.values())


def logits_of(seed, num_rows=1, spread=2.0):
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def enter(sampler, row, params, *, seed=1, choice=0, prompt=(10, 11, 12), outputs=(), end_token_ids=(EOS,)):
    sampler.enter(
        row,
        params,
        seed=seed,
        choice=choice,
        prompt_token_ids=list(prompt),
        output_token_ids=list(outputs),
        end_token_ids=end_token_ids,
    )


def sample(sampler, logits, rows, positions):
    return sampler.sample(logits, np.array(rows), np.array(positions)).token_ids.tolist()


def draw_alone(logits, params, *, position=3, **request):
    sampler = Sampler(1, VOCAB)
    enter(sampler, 0, params, **request)
    return sample(sampler, logits, [0], [position])[0]


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
        *("plain", "temperature", "small top_k", "large top_k", "top_p", "min_p", "typical_p", "min_p, typical_p"),
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


# Independence: the same request, the same tokens


def generate(sampler, row, num_steps, *, start, neighbours=()):
    """Drive `row` through steps whose logits depend on the position, in company or alone."""
    tokens = []
    for position in range(start, start + num_steps):
        rows = [*neighbours[: position % 3], row, *neighbours[position % 3 :]]
        logits = torch.cat([logits_of(position if r == row else 1000 * r + position) for r in rows])
        tokens.append(sample(sampler, logits, rows, [position] * len(rows))[rows.index(row)])
    return tokens


@pytest.mark.parametrize("params", MIXED, ids=MIXED_NAMES)
def test_a_request_draws_the_same_alone_in_company_in_another_row_and_after_coming_back(params):
    alone = Sampler(1, VOCAB)
    enter(alone, 0, params, seed=77)
    expected = generate(alone, 0, 9, start=3)

    busy = Sampler(len(MIXED) + 2, VOCAB)
    neighbours = [row for row in range(len(MIXED) + 1) if row != 6]
    for row, other in zip(neighbours, MIXED, strict=True):
        enter(busy, row, other, seed=row)
    enter(busy, 6, params, seed=77)
    first = generate(busy, 6, 4, start=3, neighbours=neighbours)
    busy.leave(6)
    last = len(MIXED) + 1
    enter(busy, last, params, seed=77, outputs=first)
    rest = generate(busy, last, 5, start=7, neighbours=neighbours)
    assert first + rest == expected


def test_a_mixed_batch_equals_its_rows_one_by_one():
    sampler = Sampler(len(MIXED), VOCAB)
    logits = logits_of(9, num_rows=len(MIXED))
    outputs = [20, 21, 20]
    for row, params in enumerate(MIXED):
        enter(sampler, row, params, seed=row, outputs=outputs)
    together = sample(sampler, logits, range(len(MIXED)), [6] * len(MIXED))
    one_by_one = [
        draw_alone(logits[row : row + 1], params, seed=row, outputs=outputs, position=6)
        for row, params in enumerate(MIXED)
    ]
    assert together == one_by_one


def test_the_number_of_threads_changes_nothing():
    threads = torch.get_num_threads()
    logits = torch.randn(40, 30_000, generator=torch.Generator().manual_seed(3))
    drawn = []
    try:
        for num_threads in (1, 2):
            torch.set_num_threads(num_threads)
            sampler = Sampler(40, 30_000)
            for row in range(40):
                enter(sampler, row, MIXED[row % len(MIXED)], seed=row)
            drawn.append(sample(sampler, logits, range(40), [3] * 40))
    finally:
        torch.set_num_threads(threads)
    assert drawn[0] == drawn[1]


def test_seed_choice_and_position_each_change_the_draw():
    logits = torch.zeros(1, VOCAB)
    base = draw_alone(logits, SamplingParams())
    assert base == draw_alone(logits, SamplingParams())
    assert (
        len({base, draw_alone(logits, SamplingParams(), choice=1), draw_alone(logits, SamplingParams(), seed=2)}) == 3
    )
    assert base != draw_alone(logits, SamplingParams(), position=4)


@pytest.mark.parametrize("seed", [2**64 - 1, -(2**63), 2**63, -5])
def test_the_widest_seeds_work(seed):
    logits = torch.zeros(1, VOCAB)
    share = uniform(torch.tensor([(seed + 2**63) % 2**64 - 2**63]), torch.tensor([3]), torch.tensor([0])).item()
    assert draw_alone(logits, SamplingParams(), seed=seed) == int(share * VOCAB)


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
    sampler.leave(0)
    enter(sampler, 0, SamplingParams(temperature=0.0, presence_penalty=0.1), prompt=(1,))
    assert sample(sampler, logits, [0], [1]) == [EOS]
    enter(sampler, 0, SamplingParams(temperature=0.0), prompt=(1,))
    assert sample(sampler, logits, [0], [1]) == [EOS]


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


# Tokens favoured, allowed and forbidden


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
        {"allowed_token_ids": [7, 8], "bad_token_sequences": [[8], [12, 7]]},
        {"allowed_token_ids": [7], "bad_token_sequences": [[7]], "typical_p": 0.5, "top_p": 0.5},
    ],
    ids=["end token too early", "bad sequences", "bad token"],
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


def test_those_who_ask_are_told_what_the_untouched_logits_say():
    sampler = Sampler(4, VOCAB)
    enter(sampler, 0, SamplingParams(logprobs=0))
    enter(sampler, 1, SamplingParams())
    enter(sampler, 2, MIXED_BY_NAME["all"])
    enter(sampler, 3, SamplingParams(temperature=0.0, allowed_token_ids=[9], logprobs=5))
    logits = logits_of(3, num_rows=4)
    sampled = sampler.sample(logits, np.array([2, 1, 3, 0]), np.full(4, 3))
    assert sampled.scored.tolist() == [0, 2, 3]
    assert sampled.scores.token_ids[:, 0].tolist() == sampled.token_ids[[0, 2, 3]].tolist()
    expected = logits[[0, 2, 3]].log_softmax(-1)
    assert torch.equal(sampled.scores.token_ids[:, 1:], expected.topk(5).indices)
    told = expected.gather(1, sampled.scores.token_ids)
    torch.testing.assert_close(sampled.scores.logprobs, told, atol=1e-5, rtol=0)
    assert torch.equal(sampled.scores.ranks, (expected > told[:, :1]).sum(-1) + 1)
    assert sampled.scores.ranks[1] > 1


def test_nobody_asks_nobody_is_told():
    sampler = Sampler(1, VOCAB)
    enter(sampler, 0, SamplingParams())
    sampled = sampler.sample(logits_of(0), np.array([0]), np.array([3]))
    assert sampled.scores is None
    assert not len(sampled.scored)


def test_log_probabilities_do_not_depend_on_the_batch():
    sampler = Sampler(len(MIXED), VOCAB)
    asking = [replace(params, logprobs=row % 3) for row, params in enumerate(MIXED)]
    logits = logits_of(8, num_rows=len(MIXED))
    for row, params in enumerate(asking):
        enter(sampler, row, params, seed=row)
    together = sampler.sample(logits, np.arange(len(MIXED)), np.full(len(MIXED), 3))
    for row, params in enumerate(asking):
        alone = Sampler(1, VOCAB)
        enter(alone, 0, params, seed=row)
        scores = alone.sample(logits[row : row + 1], np.array([0]), np.array([3])).scores
        width = 1 + params.logprobs
        assert torch.equal(scores.token_ids[0], together.scores.token_ids[row, :width])
        assert torch.equal(scores.logprobs[0], together.scores.logprobs[row, :width])
        assert scores.ranks[0] == together.scores.ranks[row]


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
    sampler.leave(0)
    sampler.leave(0)
    enter(sampler, 1, frequent, outputs=(5,))
    enter(sampler, 2, frequent, outputs=(6,))
    logits = torch.zeros(2, VOCAB)
    logits[:, [5, 6]] = torch.tensor([1.0, 1.5])
    assert sample(sampler, logits, [1, 2], [4, 4]) == [6, 5]


@pytest.mark.parametrize("row", [-1, 2])
def test_a_row_that_does_not_exist_is_refused(row):
    with pytest.raises(InvalidParameter, match=f"from 0 to 1, got {row}"):
        enter(Sampler(2, VOCAB), row, SamplingParams())

"""Forty requests that together use everything a request may ask for; each fits a pool of 12 blocks by itself."""

import random
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

from transformers import MixtralConfig

from rayinfer.sampling_params import SamplingParams
from support.tiny_models.tiny_checkpoints import make_tiny_llama, make_tiny_model, save_tokenizer

CONTEXT = 192  # tokens of prompt and answer: 12 blocks of 16
VOCAB_SIZE = 384
END_TOKEN_IDS = [2, 41, 97]
PRIORITIES = (0, -2, 0, 3)  # taken in turn: nobody's answer depends on them


class MixedRequest(NamedTuple):
    """A prompt, what is asked of it, and the name that a failing comparison shows."""

    name: str
    prompt_token_ids: list[int]
    params: SamplingParams
    priority: int = 0


def make_mixed_model(folder: Path) -> Path:
    """Save the model that answers: a random Llama, for which everything that is asked below makes a difference."""
    return make_tiny_llama(folder, tie=False, vocab_size=VOCAB_SIZE, eos_token_id=END_TOKEN_IDS)


def make_sparse_model(folder: Path) -> Path:
    """Save another one: a random Mixtral, whose window is shorter than most prompts."""
    config = MixtralConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=24,
        max_position_embeddings=512,
        eos_token_id=END_TOKEN_IDS,
    )
    save_tokenizer(make_tiny_model(folder, config), VOCAB_SIZE)
    return folder


def mixed_requests() -> list[MixedRequest]:
    """The forty requests, always the same."""
    priorities = cycle(PRIORITIES)
    return [
        MixedRequest(name, prompt, _params(number, **settings), next(priorities))
        for number, (name, prompt, settings) in enumerate(_TABLE)
    ]


def _params(number: int, **settings: Any) -> SamplingParams:
    """Make the default parameters of the requests: a seed of their own, 24 tokens and their log probabilities."""
    return SamplingParams(**{"seed": number, "max_tokens": 24, "logprobs": 2} | settings)


def _prompt(length: int, seed: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(len(END_TOKEN_IDS) + 1, VOCAB_SIZE) for _ in range(length)]


GREEDY: dict[str, Any] = {"temperature": 0.0, "seed": None, "ignore_eos": True}
DOCUMENT = _prompt(64, seed=100)  # four blocks, at the head of a dozen prompts
QUESTION = [*DOCUMENT, *_prompt(7, seed=101)]
ALLOWED = list(range(60, 90))
PARITY_PAIRS = [[one, other] for one in ALLOWED for other in ALLOWED if (one + other) % 2]

_TABLE: tuple[tuple[str, list[int], dict[str, Any]], ...] = (
    ("greedy, behind a single token", _prompt(1, 0), GREEDY),
    ("greedy, behind a whole block", _prompt(16, 1), GREEDY),
    ("greedy, until an end token", _prompt(17, 39), GREEDY | {"ignore_eos": False, "max_tokens": 60}),
    ("greedy, to the end of the context", _prompt(150, 4), GREEDY | {"max_tokens": None}),
    ("greedy twin", QUESTION, GREEDY),
    ("the other greedy twin", QUESTION, GREEDY),
    ("drawn behind the document", DOCUMENT, {"temperature": 0.9, "ignore_eos": True}),
    ("drawn behind most of the document", [*DOCUMENT[:48], *_prompt(10, 5)], {"top_p": 0.95, "ignore_eos": True}),
    ("the question, its prompt scored", QUESTION, {"prompt_logprobs": 2, "ignore_eos": True}),
    ("the question, drawn, nothing told", QUESTION, {"logprobs": None, "ignore_eos": True}),
    ("the question and more", [*QUESTION, *_prompt(60, 6)], {"prompt_logprobs": 0, "max_tokens": 40}),
    ("three answers to the question", QUESTION, {"n": 3, "ignore_eos": True}),
    ("three answers with stop strings", _prompt(20, 7), {"n": 3, "stop": ["an", "j"], "max_tokens": 60}),
    ("three answers, their prompt scored", _prompt(33, 8), {"n": 3, "prompt_logprobs": 3, "min_tokens": 12}),
    ("two greedy answers, which are the same", _prompt(12, 9), GREEDY | {"n": 2, "frequency_penalty": 1.5}),
    ("repetition penalty, greedy", _prompt(30, 10), GREEDY | {"repetition_penalty": 1.4}),
    ("repetition penalty over the document", DOCUMENT, {"repetition_penalty": 1.8, "max_tokens": 50}),
    ("presence penalty", _prompt(5, 11), {"presence_penalty": 1.9, "temperature": 0.6, "ignore_eos": True}),
    ("frequency penalty, greedy", _prompt(48, 12), GREEDY | {"frequency_penalty": 1.2, "max_tokens": 60}),
    (
        "all penalties",
        _prompt(70, 13),
        {"repetition_penalty": 0.8, "presence_penalty": -0.5, "frequency_penalty": 0.7, "max_tokens": 50},
    ),
    ("logit bias", _prompt(3, 14), {"logit_bias": {10: 4.0, 20: 3.5, 30: -100.0}, "ignore_eos": True}),
    (
        "logit bias against end tokens",
        _prompt(6, 15),
        {"logit_bias": dict.fromkeys(END_TOKEN_IDS, -100.0), "top_k": 20},
    ),
    (
        "allowed ids, half of which may not follow the one before",
        _prompt(40, 16),
        # One token more, which ends no pair: settings are refused where every token might be forbidden.
        {"allowed_token_ids": [*ALLOWED, 90], "bad_token_sequences": PARITY_PAIRS, "max_tokens": 60},
    ),
    ("bad words", _prompt(8, 17), {"bad_words": ["e", " the", "France"], "max_tokens": 40, "temperature": 0.5}),
    (
        "bad sequences behind the document",
        DOCUMENT,
        GREEDY | {"bad_token_sequences": [[DOCUMENT[-1], token_id] for token_id in range(100, VOCAB_SIZE)]},
    ),
    ("typical-p", _prompt(26, 18), {"typical_p": 0.6, "ignore_eos": True}),
    ("min-p", _prompt(14, 19), {"min_p": 0.2, "ignore_eos": True}),
    ("top-k", _prompt(80, 20), {"top_k": 5, "max_tokens": 70, "ignore_eos": True}),
    ("top-p, the largest seed", _prompt(11, 21), {"top_p": 0.5, "seed": 2**64 - 1}),
    (
        "every truncation, hot",
        [*DOCUMENT, *_prompt(30, 22)],
        {"temperature": 2.0, "top_k": 150, "top_p": 0.98, "min_p": 0.001, "typical_p": 0.97, "ignore_eos": True},
    ),
    (
        "min_tokens before end and stop ids",
        _prompt(22, 23),
        {"min_tokens": 20, "stop_token_ids": list(range(99, 200)), "max_tokens": 60},
    ),
    ("stop strings", _prompt(15, 24), {"stop": ["ow", "en", "th"], "max_tokens": 60, "ignore_eos": True}),
    (
        "stop strings, included",
        _prompt(32, 25),
        {"stop": [" is", "ar", "qu"], "max_tokens": 60, "include_stop_str_in_output": True, "ignore_eos": True},
    ),
    ("stop strings after min_tokens", _prompt(19, 26), {"stop": ["e", "o", "t"], "min_tokens": 15, "max_tokens": 60}),
    (
        "stop ids, included",
        _prompt(4, 27),
        {
            "stop_token_ids": list(range(210, 230)),
            "include_stop_str_in_output": True,
            "max_tokens": 80,
            "ignore_eos": True,
        },
    ),
    ("many stop ids", _prompt(13, 32), {"stop_token_ids": list(range(300, 320)), "max_tokens": 80, "ignore_eos": True}),
    (
        "special tokens shown",
        _prompt(2, 28),
        {"logit_bias": {0: 4.0, 1: 4.0}, "skip_special_tokens": False, "seed": -5},
    ),
    ("one token, most of it told", _prompt(64, 29), {"max_tokens": 1, "logprobs": 20, "prompt_logprobs": 20}),
    ("a prompt that is only scored", [*DOCUMENT, *_prompt(36, 30)], {"max_tokens": 0, "prompt_logprobs": 4}),
    (
        "a prompt that fills the context",
        _prompt(CONTEXT, 31),
        {"max_tokens": 0, "prompt_logprobs": 0, "logprobs": None},
    ),
)

"""Random requests of all kinds, the same for the same seed."""

import random
from collections.abc import Callable, Mapping
from typing import Any

from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.sampling_params import SamplingParams

NUM_SHARED_PREFIXES = 8
TIMEOUT_FRACTION, REJECTED_FRACTION = 0.03, 0.01

_Draw = Callable[[random.Random, int], Mapping[str, Any]]  # from a vocabulary of this size
_GREEDY: _Draw = lambda chance, vocab_size: {"temperature": 0.0}  # noqa: E731
# Each request has some of them.
_TRUNCATIONS: tuple[_Draw, ...] = (
    lambda chance, vocab_size: {"top_k": chance.choice((1, 5, 50, vocab_size))},
    lambda chance, vocab_size: {"top_p": chance.uniform(0.05, 1.0)},
    lambda chance, vocab_size: {"min_p": chance.uniform(0.0, 0.3)},
    lambda chance, vocab_size: {"typical_p": chance.uniform(0.2, 1.0)},
)
_OTHERS: tuple[_Draw, ...] = (
    lambda chance, vocab_size: {"repetition_penalty": chance.uniform(0.7, 1.6)},
    lambda chance, vocab_size: {
        "presence_penalty": chance.uniform(-2.0, 2.0),
        "frequency_penalty": chance.uniform(-2.0, 2.0),
    },
    lambda chance, vocab_size: {"logprobs": chance.choice((0, 1, 5, 20))},
    lambda chance, vocab_size: {"seed": chance.getrandbits(63)},
    lambda chance, vocab_size: {"logit_bias": {_token(chance, vocab_size): chance.uniform(-5.0, 5.0)}},
    lambda chance, vocab_size: {"allowed_token_ids": [_token(chance, vocab_size) for _ in range(20)]},
    lambda chance, vocab_size: {"bad_token_sequences": [[_token(chance, vocab_size)] for _ in range(3)]},
    lambda chance, vocab_size: {"stop_token_ids": [_token(chance, vocab_size) for _ in range(vocab_size // 50)]},
    lambda chance, vocab_size: {"ignore_eos": False},
)


class RandomRequests:
    """Source of requests that fit an engine, and of a few that it must reject."""

    def __init__(self, description: ModelDescription, seed: int) -> None:
        self._chance = random.Random(seed)
        self._description = description
        self._num_drawn = 0
        longest = description.max_model_len // 4
        self._prefixes = [self._tokens(self._chance.randint(1, longest)) for _ in range(NUM_SHARED_PREFIXES)]

    def draw(self) -> GenerationRequest:
        """Draw the next request."""
        chance, longest = self._chance, self._description.max_model_len
        self._num_drawn += 1
        prompt = self._prompt(longest)
        params = self._params(longest - len(prompt))
        return GenerationRequest(
            request_id=f"request-{self._num_drawn}",
            prompt_token_ids=prompt,
            sampling_params=params,
            priority=chance.choice((0, 0, 0, -2, 1, 3)),
            timeout_s=chance.uniform(0.01, 2.0) if chance.random() < TIMEOUT_FRACTION else None,
            cache_salt=chance.choice(("", "", "", "another")),
            trace=chance.random() < 0.05,
        )

    def draw_rejected(self) -> GenerationRequest:
        """Draw a request whose prompt is too long or empty, or has an unknown token."""
        self._num_drawn += 1
        too_long = self._tokens(self._description.max_model_len + 1)
        prompt = self._chance.choice((too_long, [self._description.vocab_size], []))
        return GenerationRequest(
            request_id=f"request-{self._num_drawn}", prompt_token_ids=prompt, sampling_params=SamplingParams()
        )

    def _prompt(self, longest: int) -> list[int]:
        chance = self._chance
        fraction = chance.choices((0.01, 0.1, 0.3, 0.7), weights=(20, 50, 25, 5))[0]
        own = self._tokens(chance.randint(1, max(1, int(longest * fraction) - 1)))
        prefix = chance.choice(self._prefixes) if chance.random() < 0.5 else []
        return (prefix + own)[: longest - 1]

    def _params(self, max_output: int) -> SamplingParams:
        """Draw the settings of an output of at most `max_output` tokens."""
        chance, vocab_size = self._chance, self._description.vocab_size
        settings: dict[str, Any] = {"ignore_eos": True, "max_tokens": chance.randint(1, max(1, min(max_output, 200)))}
        if chance.random() < 0.3:
            settings |= _GREEDY(chance, vocab_size)
        else:
            settings["temperature"] = chance.uniform(0.1, 2.0)
            for draw in chance.sample(_TRUNCATIONS, chance.choice((0, 1, 1, 2, 4))):
                settings |= draw(chance, vocab_size)
        for draw in chance.sample(_OTHERS, chance.choice((0, 1, 2, 3))):
            settings |= draw(chance, vocab_size)
        if "allowed_token_ids" in settings:  # or no token might be allowed
            settings.pop("bad_token_sequences", None)
        elif chance.random() < 0.1:
            settings["min_tokens"] = chance.randint(0, settings["max_tokens"])
        if chance.random() < 0.03:
            settings["prompt_logprobs"] = chance.choice((0, 3))
        return SamplingParams(**settings)

    def _tokens(self, count: int) -> list[int]:
        return [_token(self._chance, self._description.vocab_size) for _ in range(count)]


def _token(chance: random.Random, vocab_size: int) -> int:
    return chance.randrange(1, vocab_size)

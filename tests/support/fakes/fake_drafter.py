"""Drafters that know the answers, and are wrong now and then."""

import random
from collections.abc import Callable, Iterable, Sequence

from rayinfer.engine.drafting.drafter import DraftRow

Follows = Callable[[list[int]], list[int]]  # the tokens that are going to follow these, as far as known


class UnreliableDrafter:
    """Drafts of some right tokens and then some of any kind, also more than was asked for, or none at all."""

    def __init__(self, follows: Follows, vocab_size: int, chance: random.Random, *, most_wrong: int = 3) -> None:
        self._follows = follows
        self._vocab_size = vocab_size
        self._chance = chance
        self._most_wrong = most_wrong

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """See Drafter."""
        return [self._draft(each.token_ids.tolist()) for each in rows]

    def _draft(self, context: list[int]) -> list[int]:
        right = self._follows(context)[: self._chance.randrange(7)]
        num_wrong = self._chance.randint(0, self._most_wrong)
        return right + [self._chance.randrange(self._vocab_size) for _ in range(num_wrong)]


def known_answers(answers: Iterable[tuple[Sequence[int], Sequence[int]]]) -> Follows:
    """Make the function of prompts and their answers."""
    by_prompt: dict[tuple[int, ...], list[list[int]]] = {}
    for prompt, answer in answers:
        by_prompt.setdefault(tuple(prompt), []).append([*prompt, *answer])
    lengths = sorted(set(map(len, by_prompt)))

    def follows(context: list[int]) -> list[int]:
        for length in lengths:
            for known in by_prompt.get(tuple(context[:length]), ()):
                if len(known) > len(context) and known[: len(context)] == context:
                    return known[len(context) :]
        return []

    return follows

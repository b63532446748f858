"""Drafter of requests with a grammar: tokens that it forces, else another drafter's, as far as it allows them."""

from collections.abc import Sequence
from dataclasses import dataclass

from llguidance import LLMatcher

from rayinfer.engine.drafting.drafter import Drafter, DraftRow
from rayinfer.grammars.compiler import GrammarCompiler


@dataclass(slots=True)
class _Followed:
    request: object
    matcher: LLMatcher
    num_tokens: int  # of the output, consumed by the matcher


class GrammarDrafter:
    """Drafts by matchers of its own, beside the sampler's; rows without a grammar are the other drafter's alone.

    What a grammar forces is a text, which other tokens may spell, too: forced tokens are drafts like any others.
    """

    def __init__(self, compiler: GrammarCompiler, other: Drafter) -> None:
        self._compiler = compiler
        self._other = other
        self._followed: dict[int, _Followed] = {}  # by row

    def propose(self, rows: Sequence[DraftRow]) -> list[Sequence[int]]:
        """See Drafter."""
        matchers = [None if each.grammar is None else self._matcher(each) for each in rows]
        drafts: list[Sequence[int]] = [
            () if matcher is None else matcher.compute_ff_tokens()[: each.limit]
            for each, matcher in zip(rows, matchers, strict=True)
        ]
        unforced = [index for index, draft in enumerate(drafts) if not draft]
        for index, draft in zip(unforced, self._other.propose([rows[index] for index in unforced]), strict=True):
            matcher = matchers[index]
            if matcher is None or not draft:
                drafts[index] = draft
            else:
                drafts[index] = draft[: matcher.validate_tokens(list(draft))]
        return drafts

    def _matcher(self, row: DraftRow) -> LLMatcher:
        """Return the matcher of the row's request behind its output."""
        assert row.grammar is not None
        output = row.token_ids[row.prompt_len :]
        followed = self._followed.get(row.row)
        if followed is None or followed.request is not row.request:
            followed = _Followed(row.request, self._compiler.matcher(row.grammar), 0)
            self._followed[row.row] = followed
        if len(output) > followed.num_tokens:
            followed.matcher.consume_tokens(output[followed.num_tokens :].tolist())
            followed.num_tokens = len(output)
        return followed.matcher

"""Prefix cache hits of routing and grouping by prefix."""

import asyncio
import random
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rayinfer.benchmark.studies.routing.fleet import Fleet, open_fleet
from rayinfer.routing.limits import RouterLimits

BLOCK_SIZE = 16
Routing = Literal["prefix", "load", "random"]
QUESTION_LEN, OUTPUT_LEN = 48, 32  # tokens of one exchange


@dataclass(frozen=True, kw_only=True, slots=True)
class Hits:
    """Prompt tokens found in a cache, of those that could have been."""

    cached_tokens: int
    cacheable_tokens: int

    @property
    def share(self) -> float:
        """Return the hit rate."""
        return self.cached_tokens / self.cacheable_tokens


async def conversation_hits(
    folder: Path, *, routing: Routing, num_conversations: int = 20, num_exchanges: int = 5, **settings: Any
) -> Hits:
    """Hold conversations on two engines, each of which can cache half of all tokens.

    A router selects the engine by prefix and load, or by load alone; or each prompt goes to a random engine. Each
    prompt repeats the conversation so far, of which all but the end are whole blocks.
    """
    length = num_exchanges * (QUESTION_LEN + OUTPUT_LEN)
    num_blocks = num_conversations * -(-length // BLOCK_SIZE) // 2
    limits = RouterLimits(route_by_prefix=routing == "prefix")
    shape = {"num_kv_blocks": num_blocks, "block_size": BLOCK_SIZE}
    async with AsyncExitStack() as stack:
        sizes = (1, 1) if routing == "random" else (2,)
        opening = [open_fleet(folder, num_engines, limits, **shape, **settings) for num_engines in sizes]
        fleets = [await stack.enter_async_context(fleet) for fleet in opening]
        draw, choice = random.Random(3), random.Random(5)
        histories: list[list[int]] = [[] for _ in range(num_conversations)]
        num_cached = num_cacheable = 0
        for _ in range(num_exchanges):
            order = draw.sample(range(num_conversations), num_conversations)
            for start in range(0, num_conversations, 4):  # four conversations at a time
                exchanges = [
                    _exchange(choice.choice(fleets), histories[number], draw) for number in order[start : start + 4]
                ]
                for cached, cacheable in await asyncio.gather(*exchanges):
                    num_cached += cached
                    num_cacheable += cacheable
        return Hits(cached_tokens=num_cached, cacheable_tokens=num_cacheable)


async def document_hits(
    folder: Path, *, group_by_prefix: bool, num_documents: int = 8, num_questions: int = 6, **settings: Any
) -> Hits:
    """Ask questions about documents, interleaved, on one engine whose cache holds two and a half documents."""
    document_len = 20 * BLOCK_SIZE
    limits = RouterLimits(group_by_prefix=group_by_prefix, max_waiting_tokens=10**9)
    num_blocks = document_len // BLOCK_SIZE * 5 // 2
    shape = {"num_kv_blocks": num_blocks, "block_size": BLOCK_SIZE, "max_num_seqs": 2}
    async with open_fleet(folder, 1, limits, **shape, **settings) as fleet:
        draw = random.Random(4)
        documents = [_tokens(draw, document_len) for _ in range(num_documents)]
        questions = [document + _tokens(draw, 8) for _ in range(num_questions) for document in documents]
        answers = await asyncio.gather(*(fleet.ask(question, 4) for question in questions))
        return Hits(
            cached_tokens=sum(answer.num_cached_tokens for answer in answers),
            cacheable_tokens=(num_questions - 1) * num_documents * document_len,
        )


async def _exchange(fleet: Fleet, history: list[int], draw: random.Random) -> tuple[int, int]:
    # The last token of an answer was never an input: its block is not full.
    cacheable = max(0, len(history) - 1) // BLOCK_SIZE * BLOCK_SIZE
    history += _tokens(draw, QUESTION_LEN)
    answer = await fleet.ask(history, OUTPUT_LEN)
    history += answer.token_ids
    return answer.num_cached_tokens, cacheable


def _tokens(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(3, 256) for _ in range(count)]

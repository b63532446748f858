"""Recent answers, in which prompt lookup looks beside a request's own text; each tenant's are found by it alone."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import xxhash

from rayinfer.engine.drafting.matches import LONGEST_MATCH, longest_match

SHORTEST_MATCH = 3  # two tokens stand together in too many other texts
_BETWEEN = -1  # no token
_OVERHEAD_BYTES = 512  # of an answer, in objects; measured
_INT32_BYTES = 4

Int32Array = npt.NDArray[np.int32]
Key = tuple[bytes, bytes]  # a salt, and the digest of an answer


@dataclass(slots=True)
class _Texts:
    """The answers of one salt, by digest, and all of them in one array, made when the next search needs it."""

    answers: dict[bytes, Int32Array] = field(default_factory=dict)
    joined: Int32Array | None = None
    digests: list[bytes] = field(default_factory=list)  # in the order of `joined`
    starts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def join(self) -> Int32Array:
        """Return all answers in one array, a mark behind each."""
        if self.joined is None:
            mark = np.array([_BETWEEN], np.int32)
            self.joined = np.concatenate([part for answer in self.answers.values() for part in (answer, mark)])
            self.digests = list(self.answers)
            lengths = [len(answer) + 1 for answer in self.answers.values()]
            self.starts = np.cumsum([0, *lengths[:-1]])
        return self.joined


class RecentAnswers:
    """Ended answers by salt, which holds tenant, cache salt, adapter and weights, in a bounded number of bytes.

    The least recently used is forgotten first: used is what is added, again too, or continued by a draft. A search is
    one pass over the answers of its salt.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._texts: dict[bytes, _Texts] = {}
        self._order: OrderedDict[Key, int] = OrderedDict()  # bytes of each answer, the least recently used first
        self.num_bytes = 0

    def add(self, salt: bytes, token_ids: Int32Array, prompt_len: int) -> None:
        """Remember an answer, and the end of its prompt, behind which its first tokens are found."""
        if len(token_ids) == prompt_len:
            return
        answer = token_ids[max(0, prompt_len - LONGEST_MATCH) :].copy()
        # The tokens lie here and in the array of all answers.
        num_bytes = 2 * _INT32_BYTES * (len(answer) + 1) + len(salt) + _OVERHEAD_BYTES
        if num_bytes > self._max_bytes:
            return
        key = salt, xxhash.xxh3_128_digest(answer.tobytes())
        if key not in self._order:
            texts = self._texts.setdefault(salt, _Texts())
            texts.answers[key[1]], texts.joined = answer, None
            self._order[key] = num_bytes
            self.num_bytes += num_bytes
        self._order.move_to_end(key)
        while self.num_bytes > self._max_bytes:
            self._forget_oldest()

    def find(self, salt: bytes, token_ids: Int32Array, limit: int) -> tuple[int, list[int]]:
        """Return how many last tokens were found in the salt's answers, and up to `limit` tokens that followed."""
        texts = self._texts.get(salt)
        if texts is None or len(token_ids) < SHORTEST_MATCH:
            return 0, []
        joined = texts.join()
        match = longest_match(joined, token_ids, between=_BETWEEN)
        if match is None or match.length < SHORTEST_MATCH:
            return 0, []
        index = int(np.searchsorted(texts.starts, match.end, side="right")) - 1
        self._order.move_to_end((salt, texts.digests[index]))
        end = int(texts.starts[index]) + len(texts.answers[texts.digests[index]])
        return match.length, joined[match.end + 1 : min(match.end + 1 + limit, end)].tolist()

    def forget(self) -> None:
        """Forget everything."""
        self._texts.clear()
        self._order.clear()
        self.num_bytes = 0

    def _forget_oldest(self) -> None:
        (salt, digest), num_bytes = self._order.popitem(last=False)
        texts = self._texts[salt]
        del texts.answers[digest]
        texts.joined = None
        self.num_bytes -= num_bytes
        if not texts.answers:
            del self._texts[salt]

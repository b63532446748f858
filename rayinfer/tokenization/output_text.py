"""The text of one answer as its tokens arrive: whole characters only, and never a part of a stop string."""

from collections.abc import Sequence
from typing import NamedTuple

from rayinfer.tokenization.detokenizer import Detokenized
from rayinfer.tokenization.stop_strings import StopMatch, StopStringFinder
from rayinfer.tokenization.tokenizer import Tokenizer


class TextDelta(NamedTuple):
    """The text that became certain, how many of the new tokens count, and the stop string that ended it all."""

    text: str
    num_tokens: int
    stop_string: str | None = None


class OutputText:
    """Makes the text of one choice; all deltas together are what decoding all of its tokens at once gives.

    The text is a function of the token ids alone: how they are cut into appends changes nothing. It ends at the first
    token with which the text so far holds a stop string; that token is the last one that counts. The first text of
    SentencePiece tokenizers depends on whether text stands before it: the prompt decides.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int],
        *,
        stop_strings: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
    ) -> None:
        self._detokenizer = tokenizer.detokenizer(prompt_token_ids, skip_special_tokens=skip_special_tokens)
        self._finder = StopStringFinder(stop_strings) if stop_strings else None
        self._includes_stop_string = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._num_tokens = 0
        self._held: list[str] = []  # certain, but it may begin a stop string, or uncertain text follows it
        self._uncertain: list[str] = []
        self._has_ended = False

    def append(self, token_ids: Sequence[int], *, is_last: bool) -> TextDelta:
        """Take the next tokens and return the text that is now certain; after the end nothing counts any more."""
        if self._has_ended:
            return TextDelta("", 0)
        for position, token_id in enumerate(token_ids):
            self._num_tokens += 1
            match = self._take(self._detokenizer.step(token_id))
            if match is not None:
                return TextDelta(self._end_at(match), position + 1, match.stop_string)
        if is_last:
            match = self._take(self._detokenizer.flush())
            text = self._end() if match is None else self._end_at(match)
            return TextDelta(text, len(token_ids), None if match is None else match.stop_string)
        return TextDelta(self._release(), len(token_ids))

    def _take(self, new: Detokenized) -> StopMatch | None:
        """Add one token's text, and look for a stop string that it completes."""
        if new.is_certain and self._uncertain:
            self._settle(new.retracts)
        if not new.text:
            return None
        (self._held if new.is_certain else self._uncertain).append(new.text)
        if self._finder is None:
            return None
        return self._finder.scan(new.text, is_looking=self._num_tokens >= self._min_tokens)

    def _settle(self, is_retracted: bool) -> None:
        if not is_retracted:
            self._held += self._uncertain
        elif self._finder is not None:
            self._finder.restart("".join(self._held))
        self._uncertain = []

    def _release(self) -> str:
        """Give out what no later token can change."""
        if self._uncertain or not self._held:
            return ""
        text = "".join(self._held)
        num_certain = len(text) - (0 if self._finder is None else self._finder.num_held)
        self._held = [text[num_certain:]] if num_certain < len(text) else []
        return text[:num_certain]

    def _end(self) -> str:
        """Give out everything: nothing follows."""
        text = "".join(self._held) + "".join(self._uncertain)
        self._held, self._uncertain, self._has_ended = [], [], True
        return text

    def _end_at(self, match: StopMatch) -> str:
        """Give out everything up to the stop string, which ends in the piece of text that came last."""
        last_piece = (self._uncertain or self._held)[-1]
        end = match.end - len(last_piece)
        if not self._includes_stop_string:
            end -= len(match.stop_string)
        text = self._end()
        return text[: len(text) + end]

"""Fields and usage shared by whole and streamed responses."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rayinfer.errors import RequestFailed
from rayinfer.servers.generation.chat import ChatAnswer
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.openai.logprobs_formatter import CompletionLogprobs, LogprobsFormatter
from rayinfer.tokenization.token_offsets import TokenOffsets

MANY_REPEATED = 2**14  # characters and token ids


@dataclass(frozen=True, kw_only=True, slots=True)
class ResponseSettings:
    """Settings of one response, fixed before its first token."""

    id: str
    created: int  # seconds since 1970
    model: str
    prompts: Sequence[list[int]]
    num_choices: int  # per prompt
    num_returned: int | None = None  # the best of them; None: all
    new_answer: Callable[[], ChatAnswer] = ChatAnswer  # of a chat's choice
    echoed_texts: list[str] | None = None  # of the prompts, if the answers begin with them
    skips_special_tokens: bool = True
    logprobs: LogprobsFormatter | None = None  # of the choices' tokens, and of the echoed prompts' too
    prompt_logprobs: LogprobsFormatter | None = None  # whole answers only: beside the choices
    with_token_ids: bool = False
    has_service_tier: bool = False  # the client sent one: chats return which it got
    with_usage: bool = False  # streams only: a last chunk with the usage
    with_usage_in_every_chunk: bool = False

    @property
    def choices(self) -> range:
        """The indices of all choices: prompt x num_choices + choice."""
        return range(len(self.prompts) * self.num_choices)

    @property
    def repeats_much(self) -> bool:
        """Whether it takes milliseconds to encode what the choices repeat of their prompts."""
        num_ids = sum(map(len, self.prompts)) if self.with_token_ids else 0
        return self.num_choices * (sum(map(len, self.echoed_texts or ())) + num_ids) > MANY_REPEATED

    def completion_logprobs(self, choice: int, formatter: LogprobsFormatter) -> CompletionLogprobs:
        """Begin the lists of one of a completion's choices, with its prompt's tokens if they are echoed."""
        context = self.prompts[choice // self.num_choices] if self.echoed_texts is None else ()
        offsets = TokenOffsets(formatter.tokenizer, context, skip_special_tokens=self.skips_special_tokens)
        return CompletionLogprobs(formatter, offsets)


SERVICE_TIER = "default"  # there is no other


class UsageCounter:
    """Usage counter of a response, and the set of its choices that have ended."""

    def __init__(self, settings: ResponseSettings) -> None:
        self._num_prompt_tokens = sum(map(len, settings.prompts))
        self._num_cached_tokens = [0] * len(settings.prompts)
        self._num_completion_tokens = 0
        self._unfinished = set(settings.choices)

    def add(self, prompt_output: PromptOutput) -> None:
        """Count an output's tokens."""
        output = prompt_output.output
        self._num_cached_tokens[prompt_output.prompt] = output.num_cached_tokens  # of all its choices so far
        for completion in output.outputs:
            self._num_completion_tokens += len(completion.token_ids)

    def finish(self, choice: int) -> None:
        """Note that a choice has ended."""
        self._unfinished.discard(choice)

    def check_is_complete(self) -> None:
        """Raise RequestFailed when the outputs ended before all choices had."""
        if self._unfinished:
            raise RequestFailed(f"the outputs ended before the choices {sorted(self._unfinished)}")

    def usage(self, answers: Sequence[ChatAnswer] = ()) -> dict[str, Any]:
        """Return OpenAI's `usage` so far; each prompt counts once however many choices it has.

        Tokens of reasoning are counted where a parser finds it.
        """
        reasoning = [answer.num_reasoning_tokens for answer in answers if answer.num_reasoning_tokens is not None]
        details = {"completion_tokens_details": {"reasoning_tokens": sum(reasoning)}} if reasoning else {}
        return {
            "prompt_tokens": self._num_prompt_tokens,
            "completion_tokens": self._num_completion_tokens,
            "total_tokens": self._num_prompt_tokens + self._num_completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._num_cached_tokens)},
            **details,
        }

"""Responses that are sent in one piece."""

from typing import Any

from rayinfer import __version__
from rayinfer.errors import RequestFailed
from rayinfer.outputs import CompletionAggregate, OutputAggregate, TokenLogprobs
from rayinfer.servers.generation.chat import ChatAnswer
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.openai.logprobs_formatter import LogprobsFormatter
from rayinfer.servers.openai.response_settings import SERVICE_TIER, ResponseSettings, UsageCounter

MANY_POSITIONS = 1000  # whose log probabilities take milliseconds to write down
MANY_PROMPT_LOGPROBS = 20_000

FINGERPRINT = f"rayinfer-{__version__}"  # a string, which some clients insist on


class ResponseAggregate:
    """Gathers the deltas of all choices."""

    def __init__(self, settings: ResponseSettings) -> None:
        self._settings = settings
        self._usage = UsageCounter(settings)
        self._outputs = [OutputAggregate(settings.num_choices) for _ in settings.prompts]
        self._choices = [choice for output in self._outputs for choice in output.choices]
        self._answers = [settings.new_answer() for _ in settings.choices]  # of chats

    def add(self, prompt_output: PromptOutput) -> None:
        """Add an output; raises the error of a choice that failed."""
        self._usage.add(prompt_output)
        for completion in prompt_output.output.outputs:
            check_ended_well(completion)
            index = prompt_output.prompt * self._settings.num_choices + completion.index
            self._answers[index].add(completion)
            if completion.finish_reason is not None:
                self._usage.finish(index)
        self._outputs[prompt_output.prompt].add(prompt_output.output)

    @property
    def is_long(self) -> bool:
        """Whether it takes so long to encode that other requests should not wait for it."""
        if self._settings.repeats_much:
            return True
        num_positions = sum(len(choice.logprobs) for choice in self._choices)
        prompts = [output.prompt_logprobs for output in self._outputs if output.prompt_logprobs is not None]
        if num_positions + sum(map(len, prompts)) > MANY_POSITIONS:
            return True
        return sum(len(position or ()) for prompt in prompts for position in prompt) > MANY_PROMPT_LOGPROBS

    def chat_completion(self) -> dict[str, Any]:
        """Return the body for /v1/chat/completions; raises RequestFailed when a choice has not ended."""
        self._usage.check_is_complete()
        formatter = self._settings.logprobs
        choices = [
            {
                "index": index,
                "message": _message(self._answers[computed]),
                "logprobs": formatter and formatter.chat(choice.token_ids, choice.logprobs),
                **self._choice_end(choice),
                "finish_reason": self._answers[computed].finish_reason,
            }
            for index, (computed, choice) in enumerate(self._returned())
        ]
        body = self._body("chat.completion", choices)
        body["prompt_token_ids"] = self._settings.prompts[0] if self._settings.with_token_ids else None
        formatter = self._settings.prompt_logprobs
        body["prompt_logprobs"] = None if formatter is None else formatter.prompt(self._scored_prompt(0))
        if self._settings.has_service_tier:
            body["service_tier"] = SERVICE_TIER
        return body

    def completion(self) -> dict[str, Any]:
        """Return the body for /v1/completions; raises RequestFailed when a choice has not ended."""
        self._usage.check_is_complete()
        choices = [
            self._completion_choice(index, computed, choice)
            for index, (computed, choice) in enumerate(self._returned())
        ]
        return self._body("text_completion", choices)

    def _returned(self) -> list[tuple[int, CompletionAggregate]]:
        """Return the choices of the response, with their numbers among all: with best_of each prompt's best first."""
        numbered = list(enumerate(self._choices))
        num_choices, num_returned = self._settings.num_choices, self._settings.num_returned
        if num_returned is None:
            return numbered
        returned = []
        for first in range(0, len(numbered), num_choices):
            ranked = sorted(numbered[first : first + num_choices], key=lambda each: -mean_logprob(each[1]))
            returned += ranked[:num_returned]
        return returned

    def _completion_choice(self, index: int, computed: int, choice: CompletionAggregate) -> dict[str, Any]:
        settings, prompt = self._settings, computed // self._settings.num_choices
        echoed = "" if settings.echoed_texts is None else settings.echoed_texts[prompt]
        is_first = index % (settings.num_returned or settings.num_choices) == 0
        formatter = settings.prompt_logprobs if is_first else None  # once for each prompt
        return {
            "index": index,
            "text": echoed + "".join(choice.texts),
            "logprobs": settings.logprobs and self._completion_logprobs(computed, choice, settings.logprobs),
            **self._choice_end(choice),
            "prompt_token_ids": settings.prompts[prompt] if settings.with_token_ids else None,
            "prompt_logprobs": None if formatter is None else formatter.prompt(self._scored_prompt(prompt)),
        }

    def _completion_logprobs(
        self, index: int, choice: CompletionAggregate, formatter: LogprobsFormatter
    ) -> dict[str, Any]:
        token_ids: list[int] = []
        positions: list[TokenLogprobs | None] = []
        if self._settings.echoed_texts is not None:
            prompt = index // self._settings.num_choices
            token_ids += self._settings.prompts[prompt]
            positions += self._scored_prompt(prompt)
        lists = self._settings.completion_logprobs(index, formatter)
        return lists.format([*token_ids, *choice.token_ids], [*positions, *choice.logprobs])

    def _scored_prompt(self, prompt: int) -> list[TokenLogprobs | None]:
        if (logprobs := self._outputs[prompt].prompt_logprobs) is None:
            raise RequestFailed(f"the outputs brought no log probabilities of prompt {prompt}")
        return logprobs

    def _choice_end(self, choice: CompletionAggregate) -> dict[str, Any]:
        return {
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
            "token_ids": choice.token_ids if self._settings.with_token_ids else None,
        }

    def _body(self, object_: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._settings.id,
            "object": object_,
            "created": self._settings.created,
            "model": self._settings.model,
            "choices": choices,
            "usage": self._usage.usage(self._answers if object_ == "chat.completion" else ()),
            "system_fingerprint": FINGERPRINT,
        }


def mean_logprob(choice: CompletionAggregate) -> float:
    """Return a choice's log probability per token, by which OpenAI's best_of compares choices."""
    chosen = [position[token_id].logprob for token_id, position in zip(choice.token_ids, choice.logprobs, strict=True)]
    return sum(chosen) / max(1, len(chosen))


def _message(answer: ChatAnswer) -> dict[str, Any]:
    """Return a chat's message; reasoning and tool calls are there if the model wrote any."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
    if answer.reasoning:
        message["reasoning_content"] = message["reasoning"] = answer.reasoning
    if answer.tool_calls:
        message["content"] = answer.text or None
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return message

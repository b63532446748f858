"""Answers that are sent in one piece."""

from typing import Any

from rayinfer.errors import RequestFailed
from rayinfer.outputs import FinishReason, TokenLogprobs
from rayinfer.servers.openai.answer import AnswerSettings, Tally, check_ended_well
from rayinfer.servers.openai.logprob_wording import LogprobWording
from rayinfer.servers.openai.prompt_outputs import PromptOutput

MANY_PLACES = 1000  # whose log probabilities take milliseconds to write down


class _Choice:
    """One choice while its deltas come in."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None


class WholeAnswer:
    """Gathers the deltas of all choices."""

    def __init__(self, settings: AnswerSettings) -> None:
        self._settings = settings
        self._tally = Tally(settings)
        self._choices = [_Choice() for _ in settings.choices]
        self._prompt_logprobs: dict[int, list[TokenLogprobs | None]] = {}

    def add(self, prompt_output: PromptOutput) -> None:
        """Take a delta; raises the error of a choice that failed."""
        self._tally.add(prompt_output)
        if prompt_output.output.prompt_logprobs is not None:
            self._prompt_logprobs[prompt_output.prompt] = prompt_output.output.prompt_logprobs
        for completion in prompt_output.output.outputs:
            check_ended_well(completion)
            index = prompt_output.prompt * self._settings.num_choices + completion.index
            choice = self._choices[index]
            choice.texts.append(completion.text)
            choice.token_ids += completion.token_ids
            choice.logprobs += completion.logprobs or ()
            if completion.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = completion.finish_reason, completion.stop_reason
                self._tally.finish(index)

    @property
    def is_long(self) -> bool:
        """Whether it takes so long to encode that other requests should not wait for it."""
        if self._settings.repeats_much:
            return True
        num_places = sum(len(choice.logprobs) for choice in self._choices)
        return num_places + sum(map(len, self._prompt_logprobs.values())) > MANY_PLACES

    def chat_completion(self) -> dict[str, Any]:
        """Return the body for /v1/chat/completions; raises RequestFailed when a choice has not ended."""
        self._tally.check_is_complete()
        wording = self._settings.logprobs
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
                "logprobs": wording and wording.chat(choice.token_ids, choice.logprobs),
                **self._choice_end(choice),
            }
            for index, choice in enumerate(self._choices)
        ]
        body = self._body("chat.completion", choices)
        if self._settings.with_token_ids:
            body["prompt_token_ids"] = self._settings.prompts[0]
        if self._settings.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._settings.prompt_logprobs.prompt(self._scored_prompt(0))
        return body

    def completion(self) -> dict[str, Any]:
        """Return the body for /v1/completions; raises RequestFailed when a choice has not ended."""
        self._tally.check_is_complete()
        choices = [self._completion_choice(index, choice) for index, choice in enumerate(self._choices)]
        return self._body("text_completion", choices)

    def _completion_choice(self, index: int, choice: _Choice) -> dict[str, Any]:
        settings, prompt = self._settings, index // self._settings.num_choices
        echoed = "" if settings.echoed_texts is None else settings.echoed_texts[prompt]
        worded = {
            "index": index,
            "text": echoed + "".join(choice.texts),
            "logprobs": settings.logprobs and self._completion_logprobs(index, choice, settings.logprobs),
            **self._choice_end(choice),
        }
        if settings.with_token_ids:
            worded["prompt_token_ids"] = settings.prompts[prompt]
        if settings.prompt_logprobs is not None and index % settings.num_choices == 0:  # once for each prompt
            worded["prompt_logprobs"] = settings.prompt_logprobs.prompt(self._scored_prompt(prompt))
        return worded

    def _completion_logprobs(self, index: int, choice: _Choice, wording: LogprobWording) -> dict[str, Any]:
        token_ids: list[int] = []
        places: list[TokenLogprobs | None] = []
        if self._settings.echoed_texts is not None:
            prompt = index // self._settings.num_choices
            token_ids += self._settings.prompts[prompt]
            places += self._scored_prompt(prompt)
        lists = self._settings.completion_logprobs(index, wording)
        return lists.word([*token_ids, *choice.token_ids], [*places, *choice.logprobs])

    def _scored_prompt(self, prompt: int) -> list[TokenLogprobs | None]:
        if prompt not in self._prompt_logprobs:
            raise RequestFailed(f"the outputs brought no log probabilities of prompt {prompt}")
        return self._prompt_logprobs[prompt]

    def _choice_end(self, choice: _Choice) -> dict[str, Any]:
        end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return {**end, "token_ids": choice.token_ids} if self._settings.with_token_ids else end

    def _body(self, object_: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._settings.id,
            "object": object_,
            "created": self._settings.created,
            "model": self._settings.model,
            "choices": choices,
            "usage": self._tally.usage(),
            "system_fingerprint": None,
        }

"""Answers that are sent in one piece."""

from typing import Any

from rayinfer.outputs import FinishReason
from rayinfer.servers.openai.answer import AnswerSettings, Tally, check_ended_well
from rayinfer.servers.openai.prompt_outputs import PromptOutput


class _Choice:
    """One choice while its deltas come in."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.token_ids: list[int] = []
        self.finish_reason: FinishReason | None = None
        self.stop_reason: int | str | None = None


class WholeAnswer:
    """Gathers the deltas of all choices."""

    def __init__(self, settings: AnswerSettings) -> None:
        self._settings = settings
        self._tally = Tally(settings)
        self._choices = [_Choice() for _ in settings.choices]

    def add(self, prompt_output: PromptOutput) -> None:
        """Take a delta; raises the error of a choice that failed."""
        self._tally.add(prompt_output)
        for completion in prompt_output.output.outputs:
            check_ended_well(completion)
            index = prompt_output.prompt * self._settings.num_choices + completion.index
            choice = self._choices[index]
            choice.texts.append(completion.text)
            choice.token_ids += completion.token_ids
            if completion.finish_reason is not None:
                choice.finish_reason, choice.stop_reason = completion.finish_reason, completion.stop_reason
                self._tally.finish(index)

    def chat_completion(self) -> dict[str, Any]:
        """The answer as /v1/chat/completions words it; raises RequestFailed when a choice has not ended."""
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": "".join(choice.texts), "refusal": None},
                **self._choice_end(choice),
            }
            for index, choice in enumerate(self._choices)
        ]
        body = self._body("chat.completion", choices)
        if self._settings.with_token_ids:
            body["prompt_token_ids"] = self._settings.prompts[0]
        return body

    def completion(self) -> dict[str, Any]:
        """The answer as /v1/completions words it; raises RequestFailed when a choice has not ended."""
        choices = [
            {"index": index, "text": "".join(choice.texts), **self._choice_end(choice)}
            for index, choice in enumerate(self._choices)
        ]
        if self._settings.with_token_ids:
            for index, choice in enumerate(choices):
                choice["prompt_token_ids"] = self._settings.prompts[index // self._settings.num_choices]
        return self._body("text_completion", choices)

    def _choice_end(self, choice: _Choice) -> dict[str, Any]:
        end = {"logprobs": None, "finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        return {**end, "token_ids": choice.token_ids} if self._settings.with_token_ids else end

    def _body(self, object_: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        self._tally.check_is_complete()
        return {
            "id": self._settings.id,
            "object": object_,
            "created": self._settings.created,
            "model": self._settings.model,
            "choices": choices,
            "usage": self._tally.usage(),
            "system_fingerprint": None,
        }

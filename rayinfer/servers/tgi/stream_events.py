"""TGI's streams: an event per token, the last one with the whole text."""

import json
from typing import Any

from rayinfer.errors import RequestFailed
from rayinfer.outputs import CompletionOutput
from rayinfer.servers.error_formats import tgi_error
from rayinfer.servers.error_responses import error_body
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.tgi.generation import TgiGeneration
from rayinfer.servers.tgi.tokens import finish_reason, output_tokens, top_tokens


class EventWriter:
    """Writes one stream; nothing follows the last token's event."""

    def __init__(self, generation: TgiGeneration) -> None:
        self._generation = generation
        self._texts = [generation.preceding_text]
        self._num_tokens = 0
        self._has_ended = False

    @property
    def has_slow_opening(self) -> bool:
        """Whether the opening takes milliseconds to encode: there is none."""
        return False

    @property
    def is_slow(self) -> bool:
        """Whether the next output may take milliseconds to encode: the last one repeats the prompt."""
        return len(self._generation.preceding_text) > 2**16

    def opening(self) -> bytes:
        """Encode what precedes the first output: nothing."""
        return b""

    def write(self, prompt_output: PromptOutput) -> bytes:
        """Encode an output, which may be nothing yet; raises the error of a choice that failed."""
        (output,) = prompt_output.output.outputs
        check_ended_well(output)
        self._texts.append(output.text)
        events = self._events(output)
        if output.finish_reason is not None:
            self._has_ended = True
            events[-1]["generated_text"] = "".join(self._texts)
            if self._generation.with_details:
                events[-1]["details"] = self._details(output)
        return b"".join(_event(event) for event in events)

    def ending(self) -> bytes:
        """Encode the end, which has no event of its own; raises RequestFailed when the text has not ended."""
        if not self._has_ended:
            raise RequestFailed("the outputs ended before the text had")
        return b""

    def failure(self, error: BaseException) -> bytes:
        """Encode an error that ended the stream after its first output."""
        return b"data:" + error_body(error, tgi_error) + b"\n\n"

    def _events(self, output: CompletionOutput) -> list[dict[str, Any]]:
        generation, tokenizer = self._generation, self._generation.model.tokenizer
        tokens = output_tokens(tokenizer, output)
        if not tokens and output.finish_reason is not None:  # clients need a token in each event
            end_id = tokenizer.eos_token_id or 0
            tokens = [{"id": end_id, "text": output.text, "logprob": None, "special": not output.text}]
        events: list[dict[str, Any]] = []
        for index, token in enumerate(tokens):
            event = {"index": self._num_tokens + index + 1, "token": token}
            if generation.num_top_tokens and output.logprobs:
                event["top_tokens"] = top_tokens(tokenizer, output.logprobs[index], generation.num_top_tokens)
            events.append({**event, "generated_text": None, "details": None})
        self._num_tokens += len(output.token_ids)
        return events

    def _details(self, output: CompletionOutput) -> dict[str, Any]:
        return {
            "finish_reason": finish_reason(output.finish_reason, output.stop_reason),
            "generated_tokens": self._num_tokens,
            "seed": self._generation.seed,
            "input_length": len(self._generation.prompt),
        }


def _event(fields: dict[str, Any]) -> bytes:
    return b"data:" + json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode(errors="replace") + b"\n\n"

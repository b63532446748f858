"""TGI's answers that are sent in one piece."""

from typing import Any

from rayinfer.errors import RequestFailed
from rayinfer.outputs import TokenLogprobs
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.tgi.generation import TgiGeneration
from rayinfer.servers.tgi.tokens import finish_reason, output_tokens, prefill_tokens, top_tokens

MANY_TOKENS = 2**11  # whose JSON takes milliseconds


class _Sequence:
    """One of the sequences of which the best is answered."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.num_tokens = 0
        self.tokens: list[dict[str, Any]] = []
        self.top_tokens: list[list[dict[str, Any]]] = []
        self.sum_logprobs = 0.0
        self.finish_reason: str | None = None

    @property
    def mean_logprob(self) -> float:
        """Log probability per token, by which sequences are compared."""
        return self.sum_logprobs / max(1, self.num_tokens)


class ResponseAggregate:
    """Collects all outputs of a request and makes one body of them, a list of one where TGI's root wants that."""

    def __init__(self, generation: TgiGeneration, *, is_list: bool) -> None:
        self._generation = generation
        self._is_list = is_list
        self._sequences = [_Sequence() for _ in range(generation.params.n)]
        self._prefill: list[TokenLogprobs | None] | None = None

    @property
    def is_long(self) -> bool:
        """Whether the body takes so long to encode that other requests should not wait for it."""
        num_tokens = len(self._generation.prompt) if self._generation.with_prefill else 0
        if self._generation.with_details:
            num_new = sum(sequence.num_tokens for sequence in self._sequences)
            num_tokens += num_new * (1 + self._generation.num_top_tokens)
        return num_tokens > MANY_TOKENS or len(self._generation.preceding_text) > 2**16

    @property
    def num_tokens(self) -> int:
        """The number of generated tokens of the best sequence."""
        return self._best_first()[0].num_tokens

    def add(self, prompt_output: PromptOutput) -> None:
        """Add an output; raises the error of a sequence that failed."""
        generation, tokenizer = self._generation, self._generation.model.tokenizer
        if prompt_output.output.prompt_logprobs is not None:
            self._prefill = prompt_output.output.prompt_logprobs
        for output in prompt_output.output.outputs:
            check_ended_well(output)
            sequence = self._sequences[output.index]
            sequence.texts.append(output.text)
            sequence.num_tokens += len(output.token_ids)
            for token_id, position in zip(output.token_ids, output.logprobs or (), strict=False):
                sequence.sum_logprobs += position[token_id].logprob
                if generation.num_top_tokens and generation.with_details:
                    sequence.top_tokens.append(top_tokens(tokenizer, position, generation.num_top_tokens))
            if generation.with_details:
                sequence.tokens += output_tokens(tokenizer, output)
            if output.finish_reason is not None:
                sequence.finish_reason = finish_reason(output.finish_reason, output.stop_reason)

    def body(self) -> Any:
        """Return the body; raises RequestFailed when a sequence has not ended."""
        if any(sequence.finish_reason is None for sequence in self._sequences):
            raise RequestFailed("the outputs ended before all sequences had")
        best, *others = self._best_first()
        answer: dict[str, Any] = {"generated_text": self._text(best)}
        if self._generation.with_details:
            prefill = self._prefill_tokens()
            answer["details"] = self._details(best, prefill)
            if others:
                answer["details"]["best_of_sequences"] = [
                    {"generated_text": self._text(other), **self._details(other, prefill)} for other in others
                ]
        return [answer] if self._is_list else answer

    def _best_first(self) -> list[_Sequence]:
        return sorted(self._sequences, key=lambda sequence: -sequence.mean_logprob)

    def _text(self, sequence: _Sequence) -> str:
        return self._generation.preceding_text + "".join(sequence.texts)

    def _details(self, sequence: _Sequence, prefill: list[dict[str, Any]]) -> dict[str, Any]:
        details: dict[str, Any] = {
            "finish_reason": sequence.finish_reason,
            "generated_tokens": sequence.num_tokens,
            "seed": self._generation.seed,
            "prefill": prefill,
            "tokens": sequence.tokens,
        }
        return {**details, "top_tokens": sequence.top_tokens} if self._generation.num_top_tokens else details

    def _prefill_tokens(self) -> list[dict[str, Any]]:
        if not self._generation.with_prefill:
            return []
        if self._prefill is None:
            raise RequestFailed("the outputs brought no log probabilities of the prompt")
        return prefill_tokens(self._generation.model.tokenizer, self._generation.prompt, self._prefill)

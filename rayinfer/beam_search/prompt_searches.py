"""Searches of one or several prompts, as requests to an engine or a service and their outputs."""

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from rayinfer.beam_search.search import Beam, BeamSearch, BeamSearchParams
from rayinfer.errors import InvalidParameter
from rayinfer.outputs import CompletionOutput, RequestOutput, TokenLogprobs
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.output_text import OutputText
from rayinfer.tokenization.tokenizer import Tokenizer


class BeamRequest(NamedTuple):
    """Request for the most likely next tokens of a sequence."""

    prompt_token_ids: list[int]
    sampling_params: SamplingParams


class PromptSearches:
    """Ask for `requests`, compute all of them, and `apply` their outputs, until there are none.

    A sequence is the prompt of a request for one token, so full KV blocks are shared by all sequences that have them,
    and survive whatever happens to an engine; what is computed again is less than a block for each. Raises
    InvalidParameter for a model that is no decoder.
    """

    def __init__(
        self,
        prompts: Sequence[list[int]],
        params: Sequence[BeamSearchParams],
        description: ModelDescription,
        tokenizer: Tokenizer,
    ) -> None:
        if not description.scores_prompts or description.predictor is not None:
            raise InvalidParameter("beam search needs a decoder-only model that generates text", "use_beam_search")
        self._prompts, self._params = prompts, params
        self._tokenizer = tokenizer
        self._vocab_size = description.vocab_size
        self._never = frozenset(each[0] for each in description.bad_token_sequences if len(each) == 1)
        self._searches = [
            # A prompt that leaves no room is refused by whoever computes.
            BeamSearch(each, description.eos_token_ids, max_tokens=max(1, description.max_model_len - len(prompt)))
            for prompt, each in zip(prompts, params, strict=True)
        ]
        self._num_cached: list[int] = []

    @property
    def num_finished(self) -> int:
        """How many prompts have their answers."""
        return sum(not search.running for search in self._searches)

    def requests(self) -> list[BeamRequest]:
        """Return the requests of the next step; at first one for each prompt."""
        return [
            BeamRequest([*prompt, *beam.token_ids], self._step_params(search))
            for prompt, search in zip(self._prompts, self._searches, strict=True)
            for beam in search.running
        ]

    def apply(self, outputs: Sequence[RequestOutput]) -> None:
        """Extend the sequences by the outputs of `requests`, in their order."""
        self._num_cached = self._num_cached or [output.num_cached_tokens for output in outputs]
        tokens = iter([self._next_tokens(output) for output in outputs])
        for search in self._searches:
            if search.running:
                search.advance(list(islice(tokens, len(search.running))))

    def outputs(self) -> list[list[CompletionOutput]]:
        """Return each prompt's sequences, the one of the highest score first."""
        return [
            [self._completion(index, beam, prompt, params) for index, beam in enumerate(search.best)]
            for prompt, params, search in zip(self._prompts, self._params, self._searches, strict=True)
        ]

    @property
    def num_cached_tokens(self) -> list[int]:
        """Tokens of each prompt that were found in the prefix cache."""
        return self._num_cached

    def _step_params(self, search: BeamSearch) -> SamplingParams:
        num_logprobs = min(search.num_candidates + len(self._never), self._vocab_size)
        return SamplingParams(temperature=0.0, max_tokens=1, logprobs=num_logprobs, ignore_eos=True)

    def _next_tokens(self, output: RequestOutput) -> TokenLogprobs:
        (answer,) = output.outputs
        if answer.logprobs is None or len(answer.logprobs) != 1:
            raise RuntimeError(f"a step of beam search ended with {answer.finish_reason!r} and without a token")
        return {token_id: each for token_id, each in answer.logprobs[0].items() if token_id not in self._never}

    def _completion(self, index: int, beam: Beam, prompt: Sequence[int], params: BeamSearchParams) -> CompletionOutput:
        """Make a choice of a sequence; a token that ended it is not in its text."""
        text = OutputText(self._tokenizer, prompt, skip_special_tokens=params.skip_special_tokens)
        shown = beam.token_ids if beam.stop_token is None else beam.token_ids[:-1]
        return CompletionOutput(
            index=index,
            text=text.append(shown, is_last=True).text,
            token_ids=list(beam.token_ids),
            logprobs=list(beam.logprobs),
            finish_reason="length" if beam.stop_token is None else "stop",
            stop_reason=beam.stop_token if beam.stop_token in params.stop_token_ids else None,
        )

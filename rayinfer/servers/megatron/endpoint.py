"""Endpoint of `PUT /api` and its response."""

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response

from rayinfer.errors import RequestFailed
from rayinfer.outputs import Logprob, OutputAggregate
from rayinfer.servers.caller import request_context
from rayinfer.servers.documented_routes import add_body_schemas, add_route
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.generation.responses import WholeResponse
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.megatron.generation import (
    MegatronBody,
    MegatronGeneration,
    make_generation,
    refuse_unsupported_fields,
)
from rayinfer.servers.openai.request_body import check_schema
from rayinfer.servers.openapi import GENERATION_ERRORS
from rayinfer.servers.path_models import PATH_MODEL, find_path_model

API = "/api"
MANY_TOKENS = 2**12  # whose JSON takes milliseconds
LOWEST_LOGPROB = -9999.0  # JSON has no infinity


def add_megatron_routes(app: FastAPI, service: GenerationService) -> None:
    """Add Megatron's path to an application."""

    async def generate(request: Request) -> Response:
        """PUT /api: continue each of the prompts."""

        def prepare(raw: dict[str, Any]) -> MegatronGeneration:
            refuse_unsupported_fields(raw)
            return make_generation(
                check_schema(MegatronBody, raw), find_path_model(request, service.models, "generate"), service.limits
            )

        generation = await service.prepare(request, prepare)
        context = request_context(request)
        outputs = service.start(context, generation.prepared(), f"megatron-{context.identity.name}")
        answer = MegatronAnswer(generation)
        return WholeResponse(outputs, answer, answer.body)

    add_route(
        app,
        "PUT",
        API,
        generate,
        errors=GENERATION_ERRORS,
        error_schema="MegatronError",
        aliases=[PATH_MODEL + API],
        bodies=[MegatronBody],
    )
    add_body_schemas(app, [MegatronBody])


class MegatronAnswer:
    """Collects all outputs: texts and tokens with the prompts before them, and their log probabilities."""

    def __init__(self, generation: MegatronGeneration) -> None:
        self._generation = generation
        self._outputs = [OutputAggregate(1) for _ in generation.prompts]

    @property
    def is_long(self) -> bool:
        """Whether it takes so long to encode that other requests should not wait for it."""
        num_prompt_tokens = sum(map(len, self._generation.prompts))
        return num_prompt_tokens + sum(len(output.choices[0].token_ids) for output in self._outputs) > MANY_TOKENS

    def add(self, prompt_output: PromptOutput) -> None:
        """Add an output; raises the error of a prompt whose text failed."""
        for completion in prompt_output.output.outputs:
            check_ended_well(completion)
        self._outputs[prompt_output.prompt].add(prompt_output.output)

    def body(self) -> dict[str, Any]:
        """Return the body; raises RequestFailed when a text has not ended."""
        choices = [output.choices[0] for output in self._outputs]
        if any(choice.finish_reason is None for choice in choices):
            raise RequestFailed("the outputs ended before all texts had")
        tokenizer, prompts = self._generation.model.tokenizer, self._generation.prompts
        tokens = [[*prompt, *choice.token_ids] for prompt, choice in zip(prompts, choices, strict=True)]
        body: dict[str, Any] = {
            "text": [
                text + "".join(choice.texts) for text, choice in zip(self._generation.texts, choices, strict=True)
            ],
            "segments": [[tokenizer.token_text(token_id).text for token_id in token_ids] for token_ids in tokens],
            "tokens": tokens,
        }
        if self._generation.params.prompt_logprobs is not None:
            body["logprobs"] = [self._logprobs(prompt) for prompt in range(len(prompts))]
        return body

    def _logprobs(self, prompt: int) -> list[float]:
        """Return the log probabilities of a prompt and its text, of all tokens but the first."""
        output, choice = self._outputs[prompt], self._outputs[prompt].choices[0]
        if output.prompt_logprobs is None:
            raise RequestFailed(f"the outputs brought no log probabilities of prompt {prompt}")
        token_ids = [*self._generation.prompts[prompt], *choice.token_ids]
        positions = [*output.prompt_logprobs, *choice.logprobs]
        return [
            _finite(position[token_id])
            for token_id, position in zip(token_ids, positions, strict=True)
            if position is not None
        ]


def _finite(logprob: Logprob) -> float:
    return max(logprob.logprob, LOWEST_LOGPROB)

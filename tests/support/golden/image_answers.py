"""Answers of `LLM` to prompts with images beside those of transformers."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image

from rayinfer import LLM, SamplingParams
from rayinfer.outputs import RequestOutput
from support.golden.decoder_runs import CLOSE

GREEDY = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True, logprobs=3, prompt_logprobs=3)
SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)


def text_of(images: Sequence[Image.Image], marker: str) -> str:
    """Write a text with the marker of each image."""
    return "What is this?" + f" {marker} and" * len(images)


def prompt_of(images: Sequence[Any], marker: str, text: str | None = None) -> dict[str, Any]:
    """Make a prompt of `LLM` with images, by default of `text_of`."""
    return {"prompt": text or text_of(images, marker), "multi_modal_data": {"image": images}}


def generate(llm: LLM, prompts: Sequence[Any], params: SamplingParams = SHORT) -> list[RequestOutput]:
    """Generate without a progress bar."""
    return llm.generate(prompts, params, use_tqdm=False)


def tokens_of(outputs: Sequence[RequestOutput]) -> list[list[int]]:
    """Return the tokens of the first choices."""
    return [output.outputs[0].token_ids for output in outputs]


def check_like_transformers(output: RequestOutput, inputs: Any, theirs: Any) -> None:
    """All tokens' log probabilities, of prompt and output, and greedy tokens."""
    (completion,) = output.outputs
    assert output.prompt_token_ids == inputs.token_ids
    logits = theirs.logits(inputs, completion.token_ids)
    num_prompt = len(inputs.token_ids)
    assert logits[num_prompt - 1 : -1].argmax(-1).tolist() == completion.token_ids
    token_ids = torch.tensor([*inputs.token_ids[1:], *completion.token_ids])
    wanted = logits[:-1].log_softmax(-1).gather(1, token_ids[:, None])[:, 0]
    entries = [*(output.prompt_logprobs or [])[1:], *(completion.logprobs or [])]
    got = [entry[token_id].logprob for entry, token_id in zip(entries, token_ids.tolist(), strict=True) if entry]
    torch.testing.assert_close(torch.tensor(got), wanted, **CLOSE)

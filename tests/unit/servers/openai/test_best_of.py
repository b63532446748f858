"""`best_of`: more choices are computed than are returned."""

import pytest

from rayinfer.outputs import CompletionOutput, Logprob, RequestOutput
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.openai.logprobs_formatter import LogprobsFormatter
from rayinfer.servers.openai.response_aggregate import ResponseAggregate
from rayinfer.servers.openai.response_settings import ResponseSettings
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
TOKENIZER = Tokenizer(tiny_tokenizers.unigram(), {"eos_token": "</s>"})
# By prompt and choice: the log probability of each token. Of the first prompt's the longest has the best mean.
LOGPROBS = [[[-1.0], [-0.5, -0.5, -0.6], [-0.7]], [[-2.0, -1.0], [-3.0], [-0.1]]]
BEST = [(0, 1), (0, 2), (1, 2), (1, 0)]


def output(prompt, choice):
    positions = [{7: Logprob(logprob, 1)} for logprob in LOGPROBS[prompt][choice]]
    completion = CompletionOutput(
        index=choice,
        text=f"{prompt}.{choice}",
        token_ids=[7] * len(positions),
        logprobs=positions,
        finish_reason="length",
    )
    prompt_logprobs = [None, {6: Logprob(-0.25, 1)}] if choice == 0 else None
    return PromptOutput(
        prompt,
        RequestOutput(request_id="r", prompt_token_ids=[5, 6], outputs=[completion], prompt_logprobs=prompt_logprobs),
    )


def aggregate(num_prompts, **fields):
    settings = ResponseSettings(
        id="c", created=1, model="m", prompts=[[5, 6]] * num_prompts, num_choices=3, num_returned=2, **fields
    )
    gathered = ResponseAggregate(settings)
    for choice in (2, 0, 1):  # they end in any order
        for prompt in range(num_prompts):
            gathered.add(output(prompt, choice))
    return gathered


def test_each_prompts_best_choices_are_returned_the_best_first():
    wording = LogprobsFormatter(tokenizer=TOKENIZER, num_top=0)
    body = aggregate(2, logprobs=wording, prompt_logprobs=wording).completion()
    assert [choice["text"] for choice in body["choices"]] == [f"{prompt}.{choice}" for prompt, choice in BEST]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    of_tokens = [choice["logprobs"]["token_logprobs"] for choice in body["choices"]]
    assert of_tokens == [LOGPROBS[prompt][choice] for prompt, choice in BEST]
    assert [choice["prompt_logprobs"] is None for choice in body["choices"]] == [False, True, False, True]
    assert body["usage"]["completion_tokens"] == 5 + 4  # of all that were computed
    assert body["usage"]["prompt_tokens"] == 4


def test_the_best_answers_of_a_chat_are_returned_without_log_probabilities_unless_they_are_wanted():
    body = aggregate(1).chat_completion()
    assert [choice["message"]["content"] for choice in body["choices"]] == ["0.1", "0.2"]
    assert [(choice["index"], choice["logprobs"]) for choice in body["choices"]] == [(0, None), (1, None)]


@pytest.mark.parametrize("path", [TEXT, CHAT])
@pytest.mark.parametrize("fields", [{}, {"n": 2}, {"n": 2, "best_of": 2}])
async def test_so_many_choices_are_computed(client, generator, path, fields):
    prompt = {"prompt": "hello"} if path == TEXT else {"messages": [{"role": "user", "content": "hello"}]}
    body = {"model": "org/tiny", "best_of": 3, **prompt, **fields}
    response = await client.post(path, json=body)
    assert response.status_code == 200, response.text
    params = generator.requests[-1].sampling_params
    assert (params.n, params.logprobs) == (body["best_of"], 0 if body["best_of"] == 3 else None)
    answer = response.json()
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * fields.get("n", 1)
    assert answer["usage"]["completion_tokens"] == 3 * body["best_of"]


async def test_wanted_log_probabilities_are_those_of_the_best(client, generator):
    response = await client.post(TEXT, json={"model": "org/tiny", "prompt": "hello", "best_of": 3, "logprobs": 0})
    (choice,) = response.json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-1.0] * 3

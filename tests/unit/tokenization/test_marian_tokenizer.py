"""Ids and texts beside those of transformers' MarianTokenizer."""

import json
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import MarianTokenizer

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.model_folder import check_model_folder
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.output_text import OutputText
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models.tiny_marian_tokenizer import save_marian_tokenizer

TEXTS = [
    "Hello, how are you today?",
    "",
    "   ",
    "  blanks  in   and around  ",
    "tabs\tand\nlines",
    "letters of the other language only: cœur, là-bas",
    "of no language: 日本語 🙂",
    "marks that stand alone: e\u0301, i\u20e7, \u2081\u065c",
    "ligatures ﬁ, fractions ½, wide ＡＢ, roman Ⅱ",
    "▁ the mark itself ▁▁",
    ">>fra<< Hello",
    ">>fra<<Hello",
    ">>xyz<< Hello",
    "Hello >>fra<<",
    "it </s> ends <pad> here<unk>",
    "</s>",
    "zero \u0000 and \u200b nothing",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_marian_tokenizer(tmp_path_factory.mktemp("marian"))


@pytest.fixture(scope="module")
def ours(folder):
    return Tokenizer.from_folder(folder)


@pytest.fixture(scope="module")
def theirs(folder):
    return MarianTokenizer.from_pretrained(folder)


@pytest.mark.parametrize("text", TEXTS)
def test_a_source_has_the_ids_that_transformers_gives_it(text, ours, theirs):
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.encode(text, add_special_tokens=False) == theirs(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", [*TEXTS, "Bonjour, comment allez-vous ?"])
def test_an_answer_has_the_ids_that_transformers_gives_it(text, ours, theirs):
    assert ours.encode_target(text) == theirs(text_target=text, add_special_tokens=False)["input_ids"]


def test_bad_words_are_tokenized_in_the_target_language(ours, theirs):
    token_ids = theirs(text_target="Bonjour", add_special_tokens=False)["input_ids"]
    assert tuple(token_ids) in bad_word_tokenizer(ours)("Bonjour")


@settings(deadline=None, max_examples=200)
@given(text=st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("aehlo ▁\u0301ﬁœ½"), max_size=40))
def test_any_source_has_the_ids_that_transformers_gives_it(text, ours, theirs):
    assert ours.encode(text) == theirs(text)["input_ids"]


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_any_answer_reads_as_transformers_reads_it_but_for_blanks_around_it(data, ours, theirs):
    ids = data.draw(st.lists(st.integers(0, ours.vocab_size - 1), max_size=12))
    text = ours.decode(ids)
    assert text.strip() == theirs.decode(ids, skip_special_tokens=True)
    output = OutputText(ours, ours.encode("Hello"))
    assert "".join(output.append([token_id], is_last=False).text for token_id in ids) == text


def test_an_answer_does_not_begin_with_the_blank_that_would_part_it_from_its_source(ours, theirs):
    ids = theirs(text_target="Bonjour, merci")["input_ids"]
    assert OutputText(ours, ours.encode("Hello")).append(ids, is_last=True).text == "Bonjour, merci"


def test_special_ids_are_the_end_the_unknown_and_the_padding(ours, theirs):
    assert ours.special_ids == set(theirs.all_special_ids)
    assert ours.eos_token_id == theirs.eos_token_id
    assert ours.vocab_size == theirs.vocab_size


def test_a_marian_folder_needs_no_tokenizer_json(folder, tmp_path):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").touch()
    check_model_folder(tmp_path)
    (tmp_path / "target.spm").unlink()
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json is missing"):
        check_model_folder(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("source.spm", b"", "it has no pieces"),
        ("source.spm", b"\x0a\xff\x01", "it ends early"),
        ("source.spm", b"\x0f", "wire type"),
        ("source.spm", b"\x12\x02\x18\x02", "of kind 2"),
        ("source.spm", b"\x0a\x03\x0a\x01a\x1a\x05\x12\x03abc", "source.spm"),
        ("target.spm", b"", "it has no pieces"),
        ("vocab.json", b"[]", "must map tokens"),
        ("vocab.json", b"{", "cannot be read"),
        ("vocab.json", b'{"</s>": 0}', "lacks <unk>, <pad>"),
    ],
)
def test_a_broken_file_is_named(folder, tmp_path, name, content, message):
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ModelLoadError, match=message) as error:
        Tokenizer.from_folder(tmp_path)
    assert name in str(error.value)


def test_a_model_without_a_character_map_leaves_characters_alone(folder, tmp_path):
    def field(number, wire_type, data):
        return bytes([number << 3 | wire_type]) + (bytes([len(data)]) + data if wire_type == 2 else data)

    def piece(text, score):
        return field(1, 2, field(1, 2, text.encode()) + field(2, 5, struct.pack("<f", score)))

    for name in ("source.spm", "target.spm"):
        (tmp_path / name).write_bytes(piece("▁", -2.0) + piece("½", -1.0))
    (tmp_path / "vocab.json").write_text(json.dumps({"</s>": 0, "<unk>": 1, "<pad>": 2, "▁": 3, "½": 4}))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert Tokenizer.from_folder(tmp_path).encode("½ ½") == [3, 4, 3, 4, 0]

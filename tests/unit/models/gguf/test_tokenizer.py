import gguf
import pytest
from tokenizers import Tokenizer

from rayinfer.errors import UnsupportedArchitecture
from rayinfer.models.gguf.gguf_file import GgufFile
from rayinfer.models.gguf.tokenizer import write_tokenizer
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_gguf import write_tiny_gguf

TEXTS = (
    "What is the capital of France?", "  leading", "trailing   ", "tabs\t\tand\n\n\nnewlines\r\n",
    "I'm, you'll; they've!", "def add(left, right):\n    return left + right  # 12 345",
    "3.14159 x1y22z333 2024-01-02", "日本語のテキスト 12", "naïve café ½ ² Ⅷ", "🎉👩\u200d👩\u200d👧",
    "<|im_start|>user\nhi<|im_end|>\n", "\x00\x01\x7f", "e\u0301\u00a0\u3000", " " * 33 + "x", "A" * 70, "",
)  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("original"))


def tokenizer_of(file, folder) -> Tokenizer:
    folder.mkdir()
    write_tokenizer(GgufFile(file), folder, max_length=512)
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def sentencepiece_gguf(file, *, leading_space: bool = True, add_bos: bool = True):
    """Write a GGUF with a small SentencePiece vocabulary and no tensors."""
    pieces = ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello", "▁he", "lo"]
    scores = [-9.0, -10.0, -11.0, -12.0, -13.0, -3.0, -2.0, -4.0, -5.0, -6.0, -7.0, -1.0]
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *byte_tokens, *pieces])
    writer.add_token_scores([0.0] * 259 + scores)
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_token_types([*kinds, *[gguf.TokenType.BYTE] * 256, *[gguf.TokenType.NORMAL] * len(pieces)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(add_bos)
    writer.add_add_space_prefix(leading_space)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def test_byte_level_tokens_are_those_of_the_original_tokenizer(original, tmp_path):
    before = Tokenizer.from_file(str(original / "tokenizer.json"))
    after = tokenizer_of(write_tiny_gguf(original, tmp_path / "tiny.gguf"), tmp_path / "tokenizer")
    for text in TEXTS:
        assert after.encode(text).ids == before.encode(text).ids
        assert after.decode(after.encode(text).ids, skip_special_tokens=False) == text


@pytest.mark.parametrize(
    ("pre_tokenizer", "words"),
    [
        ("gpt-2", ["a", " ", " 1234", " b", "\n", "\n", "5", ".", " c"]),
        ("smollm", ["a", "  ", "1", "2", "3", "4", " b", "\n\n", "5", ".", " c"]),
        ("qwen2", ["a", " ", " ", "1", "2", "3", "4", " b", "\n\n", "5", ".", " c"]),
        ("llama-bpe", ["a", " ", " ", "123", "4", " b", "\n\n", "5", ".", " c"]),
    ],
)
def test_each_pre_tokenizer_cuts_words_and_digits_its_own_way(original, tmp_path, pre_tokenizer, words):
    file = write_tiny_gguf(original, tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer)
    text = "a  1234 b\n\n5. c"
    cut = tokenizer_of(file, tmp_path / "tokenizer").pre_tokenizer.pre_tokenize_str(text)
    assert [text[start:end] for _, (start, end) in cut] == words


@pytest.mark.parametrize(("pre_tokenizer", "composed"), [("qwen2", True), ("smollm", False)])
def test_marks_are_composed_with_their_letters_where_the_original_does_so(original, tmp_path, pre_tokenizer, composed):
    file = write_tiny_gguf(original, tmp_path / "tiny.gguf", pre_tokenizer=pre_tokenizer)
    tokenizer = tokenizer_of(file, tmp_path / "tokenizer")
    assert tokenizer.decode(tokenizer.encode("e\u0301").ids) == ("\u00e9" if composed else "e\u0301")


def test_an_unknown_pre_tokenizer_is_refused_rather_than_guessed(original, tmp_path):
    file = write_tiny_gguf(original, tmp_path / "tiny.gguf", pre_tokenizer="martian")
    with pytest.raises(UnsupportedArchitecture, match=r"'martian' is not supported; known: .*smollm"):
        tokenizer_of(file, tmp_path / "tokenizer")


def test_sentencepiece_merges_the_best_score_first(tmp_path):
    tokenizer = tokenizer_of(sentencepiece_gguf(tmp_path / "s.gguf", add_bos=False), tmp_path / "tokenizer")
    # "lo" has the best score of all, so "hello" never comes together.
    assert tokenizer.encode("hello").tokens == ["▁he", "l", "lo"]
    assert tokenizer.decode(tokenizer.encode("hello hell").ids) == "hello hell"


def test_sentencepiece_falls_back_to_bytes_and_puts_the_beginning_token_in_front(tmp_path):
    tokenizer = tokenizer_of(sentencepiece_gguf(tmp_path / "s.gguf"), tmp_path / "tokenizer")
    assert tokenizer.encode("é").tokens == ["<s>", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode("hé 🎉").ids) == "hé 🎉"


def test_sentencepiece_adds_no_space_where_the_file_says_so(tmp_path):
    file = sentencepiece_gguf(tmp_path / "s.gguf", leading_space=False, add_bos=False)
    tokenizer = tokenizer_of(file, tmp_path / "tokenizer")
    assert tokenizer.encode("he").tokens == ["he"]
    assert tokenizer.decode(tokenizer.encode(" he").ids) == " he"

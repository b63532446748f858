import json
import subprocess
import sys
import threading

import pytest
from transformers import PreTrainedTokenizerFast

from rayinfer.errors import InvalidParameter, ModelLoadError
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tokenization.truncation import Truncation
from support.tiny_models import tiny_tokenizers

TEXTS = [
    "",
    " ",
    "The quick brown fox",
    "  two  spaces\tand\na line\r\n",
    "Größe 日本語 🙂 Привет",
    "<s>one</s> <|im end|> <tool> größer als",
    "def f(x):\n    return 1234567 + x\n",
    "don't \x00 stop\u200b",
] + [f"{word} {number}.{word}" for number, word in enumerate(["one", "é", "本", "<s>", "  ", "x" * 50] * 5)]


@pytest.mark.parametrize("kind", sorted(tiny_tokenizers.MAKERS))
def test_ids_and_texts_are_those_of_transformers(kind, tmp_path):
    backend = tiny_tokenizers.put_bos_in_front(tiny_tokenizers.MAKERS[kind]())
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    folder = tiny_tokenizers.save(
        backend,
        tmp_path,
        add_bos_token=False,  # transformers believes tokenizer.json instead
        add_eos_token=True,
        pad_token=tiny_tokenizers.added("<new pad>"),
        extra_special_tokens=["<tool>", "<extra>"],
        added_tokens_decoder={"900": tiny_tokenizers.added("<from the list>")},
    )
    ours, theirs = Tokenizer.from_folder(folder), PreTrainedTokenizerFast.from_pretrained(folder)
    for text in [*TEXTS, "a<new pad>b<extra><from the list>", " ".join(TEXTS[3:]) * 30]:
        for adds in (True, False):
            ids = ours.encode(text, add_special_tokens=adds)
            assert ids == theirs.encode(text, add_special_tokens=adds)
            assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)
            assert ours.decode(ids, skip_special_tokens=False) == theirs.decode(ids)
    for truncation in (None, Truncation(5), Truncation(5, "right")):
        assert ours.encode_texts(TEXTS, truncation=truncation) == [
            ours.encode(text, truncation=truncation) for text in TEXTS
        ]
    assert ours.vocab_size == len(theirs)
    assert ours.eos_token_id == theirs.eos_token_id is not None
    assert ours.special_ids == {i for i, token in theirs.added_tokens_decoder.items() if token.special}


def test_special_tokens_of_an_old_folder_are_read_from_their_own_file(tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path, bos_token=None, eos_token=None)
    assert Tokenizer.from_folder(tmp_path).eos_token_id is None
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "</s>"}}))
    assert Tokenizer.from_folder(tmp_path).eos_token_id == tiny_tokenizers.byte_level().token_to_id("</s>")


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", [None, "", "{", '{"added_tokens_decoder": {"x": 3}}', "[1]", b"\xff\xfe"])
def test_a_missing_or_broken_file_is_named_in_one_line(name, content, tmp_path):
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), tmp_path)
    path = tmp_path / name
    path.unlink()
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelLoadError) as raised:
        Tokenizer.from_folder(tmp_path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_other_threads_run_while_a_long_text_is_tokenized():
    tokenizer = Tokenizer(tiny_tokenizers.byte_level())
    has_ended = threading.Event()
    rounds: list[int] = []

    def encode() -> None:
        tokenizer.encode("abcde" * 40_000)
        has_ended.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not has_ended.wait(0.0005):
        rounds.append(1)
    thread.join()
    assert len(rounds) > 10


def test_a_lone_surrogate_is_refused_with_its_place():
    with pytest.raises(InvalidParameter, match="U\\+D83D at position 2"):
        Tokenizer(tiny_tokenizers.byte_level()).encode("ab\ud83d")


def test_a_prompt_that_is_no_string_is_refused():
    with pytest.raises(InvalidParameter, match="int"):
        Tokenizer(tiny_tokenizers.byte_level()).encode(3)  # type: ignore[arg-type]


def test_nothing_here_loads_torch_or_ray():
    program = (
        "import sys, rayinfer.tokenization.chat_template, rayinfer.tokenization.output_text, "
        "rayinfer.routing.stream_state\n"
        "print([name for name in ('torch', 'ray') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert answer.stdout.strip() == "[]"

"""Small tokenizers of every make, trained in memory on a few lines."""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

LINES = [
    "The quick brown fox jumps over the lazy dog.",
    "What is the capital of France? It is Paris, of course!",
    "Größe, naïve café; Привет, мир. 日本語のテキスト 🙂🙃 END",
    "def add(a, b):\n    return a + b\n\n",
    "one two three four five six seven eight nine ten",
] * 4
SPECIAL = ["<s>", "</s>", "<|im end|>"]


def byte_level() -> Backend:
    """Build byte-level BPE, as GPT-2, Llama 3 and Qwen have it."""
    tokenizer = Backend(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL)
    )
    tokenizer.add_tokens(["<tool>", "größer als"])
    return tokenizer


def single_bytes() -> Backend:
    """Build byte-level BPE that merges nothing, with one token for each byte."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Backend(models.BPE(vocab={letter: index for index, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback(*, strips: bool = True) -> Backend:
    """Build BPE with byte tokens: Llama 2's decoder, or Gemma's when it strips nothing."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    trained = Backend(models.BPE())
    trained.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>", *SPECIAL, *byte_tokens], limit_alphabet=45)
    trained.train_from_iterator(LINES, trainer)
    model = json.loads(trained.to_str())["model"]
    vocab = model["vocab"]
    for token in byte_tokens:
        vocab.setdefault(token, len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Backend(models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    prepend = [normalizers.Prepend("▁")] if strips else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if strips else steps)
    return tokenizer


def unigram() -> Backend:
    """Build a SentencePiece-like Unigram with Metaspace, as T5 and XLM-R have it."""
    tokenizer = Backend(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        LINES, trainers.UnigramTrainer(vocab_size=150, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>")
    )
    return tokenizer


def unigram_with_bytes() -> Backend:
    """Build a Unigram that spells what it does not know in byte tokens, as SentencePiece does when it is asked to."""
    trained = json.loads(unigram().to_str())["model"]
    vocab = [tuple(entry) for entry in trained["vocab"]] + [(f"<0x{byte:02X}>", -20.0) for byte in range(256)]
    tokenizer = Backend(models.Unigram(vocab, trained["unk_id"], byte_fallback=True))
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def word_piece() -> Backend:
    """Build BERT's WordPiece."""
    tokenizer = Backend(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(LINES, trainers.WordPieceTrainer(vocab_size=200, special_tokens=["[UNK]", *SPECIAL]))
    return tokenizer


def word_level() -> Backend:
    """Build whole words without any decoder."""
    tokenizer = Backend(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.train_from_iterator(LINES, trainers.WordLevelTrainer(special_tokens=["[UNK]", *SPECIAL]))
    return tokenizer


def suffix_bpe() -> Backend:
    """Build the first GPT's BPE, whose words end in a mark: the last token reads differently from the others."""
    tokenizer = Backend(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.BPEDecoder()
    trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=SPECIAL, end_of_word_suffix="</w>")
    tokenizer.train_from_iterator(LINES, trainer)
    return tokenizer


def save(tokenizer: Backend, folder: Path, **settings: object) -> Path:
    """Write a folder with tokenizer.json and tokenizer_config.json, as a model comes with."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"} | settings
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def put_bos_in_front(tokenizer: Backend) -> Backend:
    """Let encoding begin with <s>."""
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def added(text: str) -> dict[str, object]:
    """Describe a special token as tokenizer_config.json does."""
    token = AddedToken(text, special=True)
    return {"__type": "AddedToken", "content": token.content, "special": True, "normalized": False}


MAKERS = {
    "byte_level": byte_level,
    "byte_fallback": byte_fallback,
    "byte_fallback_without_strip": lambda: byte_fallback(strips=False),
    "unigram": unigram,
    "unigram_with_bytes": unigram_with_bytes,
    "word_piece": word_piece,
    "word_level": word_level,
    "suffix_bpe": suffix_bpe,
}

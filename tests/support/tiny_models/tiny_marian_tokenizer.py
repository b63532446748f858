"""The tokenizer files of a Marian model, trained on a few lines of two languages in a moment."""

import io
import json
from pathlib import Path

import sentencepiece

ENGLISH = [
    "The quick brown fox jumps over the lazy dog.",
    "Hello, how are you today? I am fine, thank you!",
    "What is the capital of France? It is Paris, of course!",
    "A little house stands by the sea; an old man lives there.",
] * 5
FRENCH = [
    "Le renard brun et rapide saute par-dessus le chien paresseux.",
    "Bonjour, comment allez-vous aujourd'hui ? Je vais bien, merci !",
    "Quelle est la capitale de la France ? C'est Paris, bien sûr !",
    "Une petite maison se trouve au bord de la mer ; un cœur y vit là-bas.",
] * 5


def save_marian_tokenizer(folder: Path) -> Path:
    """Write source.spm, target.spm, vocab.json and tokenizer_config.json in `folder`, and return `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    pieces: dict[str, None] = dict.fromkeys(("</s>", "<unk>", ">>fra<<", ">>ron<<"))
    for name, lines in (("source.spm", ENGLISH), ("target.spm", FRENCH)):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_writer=model, vocab_size=90, hard_vocab_limit=False, minloglevel=2
        )
        (folder / name).write_bytes(model.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        known = range(3, processor.get_piece_size())  # behind the unknown, the first and the last
        pieces |= dict.fromkeys(map(processor.id_to_piece, known))
    vocabulary = {piece: index for index, piece in enumerate([*pieces, "<pad>"])}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text('{"source_lang": "eng", "target_lang": "fra"}', encoding="utf-8")
    return folder

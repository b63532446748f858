"""Random tiny predictors in Hugging Face folders: an encoder of each family with each head, and their tokenizers."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedModel

VOCAB_SIZE = 120
SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 70,
    "initializer_range": 0.3,
    "id2label": {0: "O", 1: "B-PER", 2: "I-PER"},
}
_DISTILBERT = {"dim": 48, "hidden_dim": 80, "n_layers": 2, "n_heads": 4}
_MODERNBERT = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2, "local_attention": 16}
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "Bert": {},
    "DistilBert": _DISTILBERT,
    "MPNet": {"pad_token_id": 1},
    "ModernBert": {"pad_token_id": 0, "num_hidden_layers": 4, "classifier_pooling": "mean", **_MODERNBERT},
    "NomicBert": {},
    "Roberta": {"pad_token_id": 1, "type_vocab_size": 1},
    "XLMRoberta": {"pad_token_id": 3, "type_vocab_size": 1},
}
HEADS = ("Model", "ForSequenceClassification", "ForTokenClassification")
TEXT = """
[PAD] [UNK] [CLS] [SEP] the a an old man saw told story stories to child children of sea house by little
quick brown fox jumps over lazy dog while seven wizards make brew for evil queen anna smith lives in
paris berlin and works at acme ##s ##ed ##ing ##er ##ly ##a ##b ##c ##d ##e b c d e f g h i j k l m n o p
"""
WORDS = TEXT.split()


def make_tiny_encoder(folder: Path, family: str, head: str, **changes: Any) -> PreTrainedModel:
    """Save an encoder with a word-piece tokenizer and return transformers' model of it; no part is trivial."""
    shape = {name: value for name, value in SHAPE.items() if family != "DistilBert" or "num_" not in name}
    config = getattr(transformers, f"{family}Config")(**{**shape, **SETTINGS[family], **changes})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: PreTrainedModel = getattr(transformers, f"{family}{head}")(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() == 1:
                    parameter.add_(torch.randn_like(parameter) / 10)
    model.save_pretrained(folder)
    save_word_pieces(folder)
    return model


def save_word_pieces(folder: Path) -> None:
    """Save a tokenizer of words and pieces with the template of BERT."""
    tokenizer = Tokenizer(models.WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 64, "do_lower_case": True}
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]"}
    names = {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings | special | names))


def save_sentence_layout(
    folder: Path, *, pooling: str = "mean", dense: int = 0, normalizes: bool = True, **settings: Any
) -> None:
    """Put the files of sentence-transformers around a model; `dense` is the width of a layer behind the pooling."""
    kinds = ["Transformer", "Pooling", *["Dense"] * bool(dense), *["Normalize"] * normalizes]
    paths = ["", *(f"{index}_{kind}" for index, kind in enumerate(kinds) if index)]
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    for path in paths[1:]:
        (folder / path).mkdir()
    hidden_size = json.loads((folder / "config.json").read_text())["hidden_size"]
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode": pooling}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    if dense:
        layer = torch.nn.Linear(hidden_size, dense)
        sizes = {"in_features": hidden_size, "out_features": dense, "bias": True}
        name = {"activation_function": "torch.nn.modules.activation.Tanh"}
        (folder / "2_Dense" / "config.json").write_text(json.dumps(sizes | name))
        tensors = {f"linear.{name}": tensor.contiguous() for name, tensor in layer.state_dict().items()}
        save_file(tensors, folder / "2_Dense" / "model.safetensors")

"""Registry of encoders: a checkpoint's name for its architecture to its family and task; loads no torch."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Family = Literal["bert", "roberta", "distilbert", "mpnet", "modernbert", "nomic_bert"]
HeadKind = Literal["none", "classify", "token_classify"]

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "Bert": "bert",
        "Camembert": "roberta",
        "DistilBert": "distilbert",
        "MPNet": "mpnet",
        "ModernBert": "modernbert",
        "NomicBert": "nomic_bert",
        "Roberta": "roberta",
        "XLMRoberta": "roberta",
    }
)
HEADS: Mapping[str, HeadKind] = MappingProxyType(
    {
        "Model": "none",
        "ForMaskedLM": "none",  # whose head is left in the file
        "ForSequenceClassification": "classify",
        "ForTokenClassification": "token_classify",
    }
)


class EncoderArchitecture(NamedTuple):
    """Family of an encoder, and the head that its checkpoint has."""

    family: Family
    head: HeadKind


def encoder_architecture(name: str) -> EncoderArchitecture | None:
    """Return what a name of config.json's `architectures` stands for; None for a name that is no encoder's."""
    for ending, head in HEADS.items():
        if family := FAMILIES.get(name.removesuffix(ending)) if name.endswith(ending) else None:
            return EncoderArchitecture(family, head)
    return None


def encoder_names() -> list[str]:
    """List the names of all encoders."""
    return [family + ending for family in FAMILIES for ending in HEADS]

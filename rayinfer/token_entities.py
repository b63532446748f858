"""Entities of a text from its tokens' labels, aggregated as transformers' token classification does (no torch here)."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from rayinfer.errors import InvalidParameter
from rayinfer.prediction_outputs import FloatArray, activated
from rayinfer.tokenization.tokenizer import Tokenizer

Aggregation = Literal["none", "simple", "first", "average", "max"]
OUTSIDE = "O"  # the label of tokens that belong to no entity


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token of a text, not a special one, with its probabilities."""

    index: int  # among all tokens, special ones included
    word: str  # as the vocabulary spells it
    start: int  # in characters of the text
    end: int
    continues_word: bool
    scores: FloatArray  # [num_labels]


@dataclass(frozen=True, slots=True)
class Entity:
    """A token, or several of one kind, with a label; `index` of single tokens only."""

    label: str
    score: float
    word: str
    start: int
    end: int
    index: int | None = None


def find_entities(
    tokens: Sequence[ScoredToken],
    labels: Sequence[str],
    aggregation: Aggregation,
    join: Callable[[Sequence[str]], str],
    ignored: Collection[str] = (OUTSIDE,),
) -> list[Entity]:
    """Return the entities of a text in their order, but those with an ignored label.

    none: each token; simple: neighbors of one kind together; first, average, max: the same, where a word has the label
    of its first token, of its mean probabilities, or of its surest token. `join` makes text of tokens' words.
    """
    if aggregation not in get_args(Aggregation):
        raise InvalidParameter(
            f"aggregation must be one of {', '.join(get_args(Aggregation))}, got {aggregation!r}", "aggregation"
        )
    if aggregation in ("none", "simple"):
        entities = [_entity(token, token.scores, labels) for token in tokens]
    else:
        entities = [_word_entity(word, labels, aggregation, join) for word in _words(tokens)]
    if aggregation != "none":
        entities = [_group_entity(group, join) for group in _groups(entities)]
    return [entity for entity in entities if entity.label not in ignored]


def _entity(token: ScoredToken, scores: FloatArray, labels: Sequence[str]) -> Entity:
    best = int(scores.argmax())
    return Entity(labels[best], float(scores[best]), token.word, token.start, token.end, token.index)


def _words(tokens: Sequence[ScoredToken]) -> list[list[ScoredToken]]:
    words: list[list[ScoredToken]] = []
    for token in tokens:
        if words and token.continues_word:
            words[-1].append(token)
        else:
            words.append([token])
    return words


def _word_entity(
    word: Sequence[ScoredToken], labels: Sequence[str], aggregation: Aggregation, join: Callable[[Sequence[str]], str]
) -> Entity:
    scores = word[0].scores
    if aggregation == "max":
        scores = max((token.scores for token in word), key=lambda scores: float(scores.max()))
    elif aggregation == "average":
        scores = np.stack([token.scores for token in word]).mean(0)
    entity = _entity(word[0], scores, labels)
    return replace(entity, word=join([token.word for token in word]), end=word[-1].end, index=None)


def _groups(entities: Sequence[Entity]) -> list[list[Entity]]:
    """Put neighbors of one kind together; one that begins an entity (B-) begins a group."""
    groups: list[list[Entity]] = []
    for entity in entities:
        if groups and not entity.label.startswith("B-") and _kind(entity.label) == _kind(groups[-1][-1].label):
            groups[-1].append(entity)
        else:
            groups.append([entity])
    return groups


def _kind(label: str) -> str:
    return label[2:] if label.startswith(("B-", "I-")) else label


def _group_entity(group: Sequence[Entity], join: Callable[[Sequence[str]], str]) -> Entity:
    label = group[0].label.split("-", 1)[-1]
    score = float(np.mean([entity.score for entity in group]))
    return Entity(label, score, join([entity.word for entity in group]), group[0].start, group[-1].end)


def scored_tokens(tokenizer: Tokenizer, text: str, numbers: FloatArray) -> list[ScoredToken]:
    """Join a text's tokens, but special ones, with their probabilities; truncated ones have none."""
    tokens = []
    unknown = tokenizer.special_tokens.get("unk_token")
    for index, (token, scores) in enumerate(
        zip(tokenizer.locate_tokens(text), activated(numbers, "softmax"), strict=False)
    ):
        if token.start == token.stop:  # special tokens stand for no characters
            continue
        word, spelled = tokenizer.token_piece(token.token_id) or "", text[token.start : token.stop]
        if tokenizer.marks_pieces:
            continues = len(word) != len(spelled)
        else:
            continues = token.start > 0 and " " not in text[token.start - 1 : token.start + 1]
        if word == unknown:
            word, continues = spelled, False
        tokens.append(ScoredToken(index, word, token.start, token.stop, continues, scores))
    return tokens

"""Scores of pairs of texts: by a model of pairs, or as the similarity of embeddings."""

from collections.abc import Sequence
from dataclasses import dataclass

from rayinfer.prediction_outputs import finish_embedding, output_numbers, relevance, similarity
from rayinfer.predictions import PredictionOutput
from rayinfer.servers.prediction.number_encoding import check_finite
from rayinfer.servers.prediction.service import PreparedPrediction, predictor_of
from rayinfer.servers.prediction.text_items import TextSettings, named_prompt, pair_items, text_items
from rayinfer.servers.served_model import ServedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class PairScores:
    """A prepared prediction, and the scores that its outputs make."""

    prepared: PreparedPrediction
    places: Sequence[tuple[int, int]] = ()  # of embeddings: the items of each pair
    is_raw: bool = False

    def read(self, outputs: Sequence[PredictionOutput]) -> list[float]:
        """Return the score of each pair."""
        numbers = [check_finite(output_numbers(output)) for output in outputs]
        description = self.prepared.description
        if not self.places:
            return [relevance(output, description, self.is_raw) for output in outputs]
        vectors = [finish_embedding(each, description) for each in numbers]
        return [similarity(vectors[first], vectors[second]) for first, second in self.places]

    def ranked(self, outputs: Sequence[PredictionOutput]) -> list[tuple[int, float]]:
        """Return the pairs with their scores, best first; of equal ones the first comes first."""
        return sorted(enumerate(self.read(outputs)), key=lambda pair: -pair[1])


def prepare_pairs(
    model: ServedModel,
    pairs: Sequence[tuple[str, str]],
    param: str,
    settings: TextSettings,
    *,
    prompt_name: str | None = None,
    is_raw: bool = False,
    priority: int = 0,
    cache_salt: str = "",
    timeout_s: float | None = None,
) -> PairScores:
    """Prepare pairs for a model that was found for "score" or "embed"; raises InvalidParameter and PromptTooLong.

    A text that comes in several pairs is embedded once.
    """
    description = predictor_of(model, ("score", "embed"))
    places: list[tuple[int, int]] = []
    if "score" in description.tasks:
        items = pair_items(pairs, model, "score", param, settings)
    else:
        texts: dict[str, int] = {}
        places = [tuple(texts.setdefault(text, len(texts)) for text in pair) for pair in pairs]  # type: ignore[misc]
        prompt = named_prompt(description, prompt_name)
        settings = TextSettings(
            truncate_to=settings.truncate_to,
            truncate_field=settings.truncate_field,
            truncation_side=settings.truncation_side,
            prompt=prompt,
        )
        items = text_items(list(texts), model, "embed", param, settings)
    prepared = PreparedPrediction(
        model=model,
        description=description,
        items=items,
        priority=priority,
        cache_salt=cache_salt,
        timeout_s=timeout_s,
        operation="rerank",
    )
    return PairScores(prepared=prepared, places=places, is_raw=is_raw)

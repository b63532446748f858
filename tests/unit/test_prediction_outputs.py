import numpy as np
import pytest

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.prediction_outputs import (
    embedding,
    label_scores,
    output_numbers,
    prediction_output,
    relevance,
    similarity,
    token_label_scores,
)
from rayinfer.predictions import PredictionOutput, PredictorDescription


def output(*numbers: float) -> PredictionOutput:
    return prediction_output(np.array(numbers, dtype=np.float32))


def test_an_embedding_is_cut_before_it_is_normalized():
    description = PredictorDescription(tasks=("embed",), embedding_size=3, normalizes=True)
    assert embedding(output(3, 4, 12), description, dimensions=2).tolist() == pytest.approx([0.6, 0.8])
    assert embedding(output(3, 4, 12), description, dimensions=2, normalize=False).tolist() == [3, 4]
    assert embedding(output(0, 0, 0), description).tolist() == [0, 0, 0]


def test_each_token_embedding_is_normalized_alone():
    description = PredictorDescription(tasks=("token_embed",), embedding_size=2)
    numbers = prediction_output(np.array([[3, 4], [0, 2]], dtype=np.float32))
    assert embedding(numbers, description).tolist() == [[3, 4], [0, 2]]
    assert embedding(numbers, description, normalize=True) == pytest.approx(np.array([[0.6, 0.8], [0, 1]]))


@pytest.mark.parametrize("dimensions", [0, 4, -1, True, 1.0])
def test_an_embedding_is_not_cut_to_dimensions_that_it_does_not_have(dimensions):
    with pytest.raises(InvalidParameter, match="dimensions"):
        embedding(output(1, 2, 3), PredictorDescription(tasks=("embed",), embedding_size=3), dimensions)


def test_a_matryoshka_model_has_some_sizes_only():
    description = PredictorDescription(tasks=("embed",), embedding_size=3, dimensions=(2,))
    assert len(embedding(output(1, 2, 3), description, 2)) == 2
    with pytest.raises(InvalidParameter, match="one of 2, 3"):
        embedding(output(1, 2, 3), description, 1)


def test_labels_come_best_first_and_no_more_than_asked_for():
    description = PredictorDescription(tasks=("classify",), labels=("a", "b", "c"), activation="softmax")
    best = label_scores(output(0, 2, 1), description)
    assert [label for label, _ in best] == ["b", "c", "a"]
    assert sum(score for _, score in best) == pytest.approx(1)
    assert label_scores(output(0, 2, 1), description, top_k=9) == best
    assert label_scores(output(0, 2, 1), description, "none", 1) == [("b", 2.0)]
    with pytest.raises(InvalidParameter, match="top_k"):
        label_scores(output(0, 2, 1), description, top_k=0)


def test_activations_do_not_overflow():
    description = PredictorDescription(tasks=("classify",), labels=("a", "b"), activation="sigmoid")
    assert dict(label_scores(output(-1e4, 1e4), description)) == {"a": 0.0, "b": 1.0}
    assert dict(label_scores(output(-1e4, 1e4), description, "softmax")) == {"a": 0.0, "b": 1.0}


def test_relevance_passes_the_activation_unless_raw():
    description = PredictorDescription(tasks=("score",), activation="sigmoid")
    assert relevance(output(0), description) == 0.5
    assert relevance(output(-3), description, raw=True) == -3


def test_each_token_has_its_best_label():
    description = PredictorDescription(tasks=("token_classify",), labels=("O", "PER"))
    numbers = prediction_output(np.array([[0, 0], [-1, 3]], dtype=np.float32))
    assert [label for label, _ in token_label_scores(numbers, description)] == ["O", "PER"]


def test_similarities_grow_with_nearness():
    one, other = np.array([3, 4], dtype=np.float32), np.array([6, 8], dtype=np.float32)
    assert similarity(one, other) == pytest.approx(1)
    assert similarity(one, other, "dot") == 50
    third = np.full(10, 0.1, np.float32)
    assert similarity(third, third) <= 1.0
    assert similarity(one, other, "euclidean") == -5
    assert similarity(one, other, "manhattan") == -7


def test_an_item_at_fault_raises_its_reason():
    with pytest.raises(RequestFailed, match="not an image"):
        output_numbers(PredictionOutput(error="not an image"))

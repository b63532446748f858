import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rayinfer import Predictor
from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.sentiment_conversion import TRAINED, convert_sentiment
from support.tiny_models.tiny_encoders import make_tiny_encoder, save_sentence_layout


@pytest.fixture
def embedder(tmp_path):
    folder = tmp_path / "embedder"
    make_tiny_encoder(folder, "Bert", "Model")
    save_sentence_layout(folder)
    return folder


@pytest.fixture
def head(tmp_path):
    generator = torch.Generator().manual_seed(0)
    tensors = {"classifier.weight": torch.randn(2, 48, generator=generator), "classifier.bias": torch.ones(2)}
    save_file(tensors, tmp_path / "head.safetensors")
    return tmp_path / "head.safetensors"


def test_an_embedder_becomes_a_classifier_with_the_labels_of_transformers(embedder, head):
    convert_sentiment(embedder, head)
    assert not (embedder / "modules.json").exists()
    text = "an old man saw the sea"
    with Predictor(str(embedder), num_threads=1) as predictor:
        assert predictor.description.labels == ("negative", "positive")
        ours = predictor.predict_proba(text)
    model = AutoModelForSequenceClassification.from_pretrained(embedder).eval()
    with torch.inference_mode():
        theirs = model(**AutoTokenizer.from_pretrained(embedder)(text, return_tensors="pt")).logits.softmax(-1)[0]
    assert ours.tolist() == pytest.approx(theirs.tolist(), abs=1e-4)


def test_a_head_of_another_model_is_refused(embedder, head):
    save_file({"classifier.weight": torch.zeros(2, 48), "no.such.bias": torch.zeros(2)}, head)
    with pytest.raises(ModelLoadError, match="does not fit"):
        convert_sentiment(embedder, head)


def test_the_embedded_head_is_of_two_labels():
    shapes = {name: list(tensor.shape) for name, tensor in load_file(TRAINED).items()}
    assert shapes == {"classifier.weight": [2, 384], "classifier.bias": [2]}

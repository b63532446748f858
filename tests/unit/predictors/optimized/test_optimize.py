"""Forms of tiny models beside their originals, and what is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from rayinfer import Predictor
from rayinfer.errors import ConfigError, LimitExceeded, ModelLoadError, NotSupported, RequestFailed
from rayinfer.models.checkpoints.model_folder import OPTIMIZED_MANIFEST
from rayinfer.models.predictor_kind import predictor_kind
from rayinfer.predictors.optimized.conversion import convert
from rayinfer.predictors.optimized.forms import FORMS, parse_form
from rayinfer.predictors.optimized.machine import check_precision
from rayinfer.predictors.optimized.manifest import KEY_FILE, file_digest, read_manifest, write_manifest
from rayinfer.predictors.optimized.optimize import UserLimits, check_optimized, optimize
from rayinfer.predictors.optimized.verification import Figures, check_limits
from rayinfer.predictors.runner import RunnerItem
from support.tiny_models.tiny_checkpoints import make_tiny_llama

COMPILED = [
    pytest.param(form, marks=pytest.mark.optimize)
    for form in ("aoti", "torch-compile", "torch-compile:reduce-overhead", "onnx", "int8-static")
]
OF_TORCH = ["torch-export", "torchscript", "bf16", "int8-dynamic", "int8-weight-only"]
TEXTS = ["an old man saw the queen", "a", "seven wizards make brew by the sea house, slowed while children jumps"]


@pytest.mark.parametrize("form", [*OF_TORCH, *COMPILED])
def test_a_classifier_keeps_its_classes_in_every_form(form, classifier, texts, tmp_path):
    out = tmp_path / "out"
    report = optimize(str(classifier), form, out, calibration=texts, labelled=texts)
    assert report.figures.num_labelled == 64
    assert report.figures.agreement >= report.limits.min_agreement >= 0.9
    assert report.figures.original_accuracy == pytest.approx(report.figures.accuracy, abs=0.01)
    manifest = read_manifest(out)
    assert (manifest.chosen, manifest.is_sealed, predictor_kind(out)) == (parse_form(form), True, "encoder")
    with Predictor(str(classifier)) as original, Predictor(str(out)) as optimized:
        assert optimized.description == original.description
        limit = report.limits.max_difference
        assert optimized.predict_proba(TEXTS) == pytest.approx(original.predict_proba(TEXTS), abs=limit)
        pair = (TEXTS[0], TEXTS[2])
        assert optimized.predict_proba(pair) == pytest.approx(original.predict_proba(pair), abs=limit)
    assert check_optimized(out).figures.max_difference <= report.figures.max_difference + 1e-4


@pytest.mark.parametrize("form", ["torchscript", "bf16", "int8-dynamic", "int8-weight-only", *COMPILED])
def test_an_image_classifier_keeps_its_classes_in_every_form(form, image_classifier, pictures, tmp_path):
    loose = UserLimits(max_difference=0.4, min_agreement=0.7)  # of random weights, whose classes are not clear
    report = optimize(str(image_classifier), form, tmp_path / "out", calibration=pictures, limits=loose)
    assert report.figures.num_items == (8 if form == "int8-static" else 16)
    image = Image.open(pictures / "03.png")
    with Predictor(str(image_classifier)) as original, Predictor(str(tmp_path / "out")) as optimized:
        probabilities = optimized.predict_proba(image)
        assert probabilities == pytest.approx(original.predict_proba(image), abs=report.figures.max_difference + 0.01)
    check_optimized(tmp_path / "out")


@pytest.mark.parametrize("form", ["torch-export", "int8-dynamic", *COMPILED])
def test_a_registered_module_computes_the_same_tensors(form, mixer, tensors, tmp_path):
    optimize(mixer, form, tmp_path / "out", calibration=tensors)
    assert predictor_kind(tmp_path / "out") == "tensors"
    inputs = {"x": np.ones((5, 6), np.float32), "scale": np.array([2], np.float32)}
    with Predictor(mixer) as original, Predictor(str(tmp_path / "out")) as optimized:
        expected, found = original.predict(inputs), optimized.predict(inputs)
        assert found["y"] == pytest.approx(expected["y"], abs=0.05)
        assert found["total"].shape == (5,)


@pytest.mark.parametrize(
    "form", ["int8-dynamic", "torchscript", pytest.param("torch-export", marks=pytest.mark.optimize), *COMPILED]
)
def test_embeddings_of_texts_and_tokens_are_kept(form, embedder, texts, build, tmp_path):
    optimize(str(embedder), form, tmp_path / "out", calibration=texts)
    with Predictor(str(embedder)) as original, Predictor(str(tmp_path / "out")) as optimized:
        assert (original.embed(TEXTS) * optimized.embed(TEXTS)).sum(-1).min() > 0.98
    items = [
        RunnerItem(task="token_embed", token_ids=token_ids) for token_ids in ([2, 9, 8, 7, 6, 3], [2, 3], [2, 11, 3])
    ]
    for one, other in zip(build(embedder).run(items), build(tmp_path / "out").run(items), strict=True):
        assert one.shape == other.shape
        assert one == pytest.approx(other, abs=0.5 if "int8" in form else 1e-4)


def spoiling(change):
    """Make a converter that changes the first scale that is written."""

    def convert_and_spoil(original, chosen, items, out):
        options = convert(original, chosen, items, out)
        tensors = load_file(out / "model.safetensors")
        change(next(tensor for name, tensor in tensors.items() if name.endswith("_scale")))
        save_file(tensors, out / "model.safetensors")
        return options

    return convert_and_spoil


def test_a_wrong_scale_is_refused_before_anything_is_written(embedder, texts, tmp_path):
    converter = spoiling(lambda scale: scale.mul_(8))
    with pytest.raises(LimitExceeded, match="beyond the limit") as caught:
        optimize(str(embedder), "int8-dynamic", tmp_path / "out", calibration=texts, converter=converter)
    assert caught.value.value != caught.value.limit
    assert [each.name for each in tmp_path.iterdir() if "out" in each.name] == []


def test_a_scale_that_is_changed_later_is_refused_by_its_digest_and_by_the_figures(embedder, texts, tmp_path):
    out = tmp_path / "out"
    optimize(str(embedder), "int8-dynamic", out, calibration=texts)
    tensors = load_file(out / "model.safetensors")
    next(tensor for name, tensor in tensors.items() if name.endswith("_scale")).mul_(8)
    save_file(tensors, out / "model.safetensors")
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is not the file that was verified"):
        Predictor(str(out))
    with pytest.raises(ModelLoadError, match="is not the file"):
        check_optimized(out)
    content = json.loads((out / OPTIMIZED_MANIFEST).read_text())
    content["files"]["model.safetensors"] = file_digest(out / "model.safetensors")
    (out / OPTIMIZED_MANIFEST).write_text(json.dumps(content))
    with pytest.raises(LimitExceeded):  # its numbers are those of the spoiled file
        check_optimized(out)


def test_damaged_folders_are_refused(embedder, texts, tmp_path):
    out = tmp_path / "out"
    optimize(str(embedder), "bf16", out, calibration=texts)
    weights, manifest = (out / "model.safetensors").read_bytes(), (out / OPTIMIZED_MANIFEST).read_text()
    (out / "model.safetensors").write_bytes(weights[:-100])
    with pytest.raises(ModelLoadError, match="is not the file that was verified"):
        Predictor(str(out))
    (out / "model.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is missing"):
        Predictor(str(out))
    (out / "model.safetensors").write_bytes(weights)
    (out / "added.json").write_text("{}")
    with pytest.raises(ModelLoadError, match=r"added\.json was added"):
        Predictor(str(out))
    (out / "added.json").unlink()
    content = json.loads(manifest)
    for wrong in ("", "[]", "{", "{}", *(json.dumps(content | each) for each in (
        {"form": "int3"}, {"kind": "audio"}, {"schema_version": 2}, {"files": []}, {"more": 1},
    ))):  # fmt: skip
        (out / OPTIMIZED_MANIFEST).write_text(wrong)
        with pytest.raises(ModelLoadError, match=OPTIMIZED_MANIFEST):
            Predictor(str(out))
    (out / OPTIMIZED_MANIFEST).write_text(manifest)
    for settings in ({"dtype": "float32"}, {"quantization": "int8"}):
        with pytest.raises(ConfigError, match="the model has the form bf16"):
            Predictor(str(out), **settings)
    Predictor(str(out)).close()


def test_code_of_others_needs_trust(mixer, tensors, tmp_path, caplog):
    out = tmp_path / "out"
    optimize(mixer, "torchscript", out, calibration=tensors)
    inputs = {"x": np.ones((5, 6), np.float32), "scale": np.array([2], np.float32)}
    with Predictor(str(out)) as predictor:
        expected = predictor.predict(inputs)
    assert "can run any code" not in caplog.text
    (tmp_path / "cache" / KEY_FILE).unlink()  # as on another machine
    with pytest.raises(ConfigError, match="trust_remote_code"):
        Predictor(str(out))
    with Predictor(str(out), trust_remote_code=True) as predictor:
        assert predictor.predict(inputs)["y"] == pytest.approx(expected["y"])
    assert "can run any code" in caplog.text
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for name in ("model.pt", "tensors.json"):
        (foreign / name).write_bytes((out / name).read_bytes())
    with pytest.raises(ConfigError, match="trust_remote_code"):
        Predictor(str(foreign))
    with Predictor(str(foreign), trust_remote_code=True) as predictor:
        assert predictor.predict(inputs)["total"] == pytest.approx(expected["total"])
    (foreign / "model.pt").write_bytes(b"PK")
    with pytest.raises(ModelLoadError, match="is no TorchScript archive"):
        Predictor(str(foreign), trust_remote_code=True)


def test_numbers_that_are_not_finite_are_refused(embedder, texts, tmp_path):
    converter = spoiling(lambda scale: scale.fill_(float("nan")))
    with pytest.raises(RequestFailed, match="item 0 of the form has numbers that are not finite"):
        optimize(str(embedder), "int8-dynamic", tmp_path / "out", calibration=texts, converter=converter)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("limits", "figure"),
    [
        (UserLimits(max_difference=1e-9), "max_difference"),
        (UserLimits(min_agreement=1.0), "min_agreement"),
    ],
)
def test_limits_of_the_user_are_kept(limits, figure, embedder, texts, tmp_path):
    with pytest.raises(LimitExceeded, match=figure):
        optimize(str(embedder), "int8-dynamic", tmp_path / "out", calibration=texts, limits=limits)


def test_a_loss_of_accuracy_beyond_the_limit_is_refused():
    figures = Figures(
        num_items=9, max_difference=0.0, agreement=1.0, seconds_per_item=1.0, original_seconds_per_item=1.0,
        cpu_seconds_per_item=1.0, original_cpu_seconds_per_item=1.0,
        num_labelled=100, accuracy=0.90, original_accuracy=0.93,
    )  # fmt: skip
    with pytest.raises(LimitExceeded, match="accuracy"):
        check_limits(figures, FORMS["int8-dynamic"].limits)
    check_limits(replace(figures, accuracy=0.95), FORMS["int8-dynamic"].limits)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"form": "int3"}, "form 'int3' is not known: choose torch-compile, onnx"),
        ({"form": "torch-compile:fast"}, "no mode 'fast'"),
        ({"form": "onnx:fast"}, "only torch-compile has modes"),
        ({"limits": UserLimits(max_difference=float("nan"))}, "max_difference must be a number"),
        ({"limits": UserLimits(min_agreement=1.1)}, "min_agreement must be at most 1"),
        ({"calibration": "missing"}, "cannot be read"),
        ({"calibration": ["{"]}, "line 1: not readable as JSON"),
        ({"calibration": ['{"text": 3}'] * 2}, "line 1: InvalidParameter"),
        ({"calibration": ['{"txt": "a"}'] * 2}, "line 1: KeyError: 'text'"),
        ({"calibration": ['{"text": "a"}']}, "must have 2 samples at least, got 1"),
        ({"labelled": ['{"text": "a", "label": "bird"}'] * 2}, "label 'bird' is not one of the model's 3 labels"),
    ],
)
def test_wrong_settings_are_named(settings, message, classifier, tmp_path):
    files = {}
    for name in ("calibration", "labelled"):
        if isinstance(settings.get(name), list):
            (tmp_path / name).write_text("\n".join(settings[name]))
        if name in settings:
            files[name] = tmp_path / (name if isinstance(settings[name], list) else settings[name])
    form, limits = settings.get("form", "bf16"), settings.get("limits", UserLimits())
    with pytest.raises(ConfigError, match=message):
        optimize(str(classifier), form, tmp_path / "out", limits=limits, **files)
    assert not (tmp_path / "out").exists()


def test_models_and_forms_without_a_meaning_are_refused(classifier, image_classifier, mixer, texts, tmp_path):
    make_tiny_llama(tmp_path / "llama")
    with pytest.raises(NotSupported, match="--quantization"):
        optimize(str(tmp_path / "llama"), "int8-dynamic", tmp_path / "out")
    with pytest.raises(ConfigError, match="give one with --calibration"):
        optimize(str(image_classifier), "bf16", tmp_path / "out")
    with pytest.raises(ConfigError, match="their own code decides it"):
        optimize(mixer, "bf16", tmp_path / "out", calibration=_tensor_lines(tmp_path))
    with pytest.raises(ConfigError, match="is there already"):
        optimize(str(classifier), "bf16", tmp_path)
    with pytest.raises(ConfigError, match="was not written by"):
        check_optimized(classifier)
    optimize(str(classifier), "bf16", tmp_path / "out", calibration=texts)
    with pytest.raises(NotSupported, match="optimize the model it was made of"):
        optimize(str(tmp_path / "out"), "bf16", tmp_path / "again", calibration=texts)


def _tensor_lines(folder):
    file = folder / "lines.jsonl"
    file.write_text('{"inputs": {"x": [[1,2,3,4,5,6],[1,2,3,4,5,6]], "scale": [1]}}\n' * 2)
    return file


def test_fp16_is_for_gpus_and_processors_that_compute_in_it():
    with pytest.raises(ConfigError, match="this processor only emulates it"):
        check_precision("fp16", torch.device("cpu"), frozenset(("avx2", "avx512f")))
    check_precision("fp16", torch.device("cpu"), frozenset(("avx512_fp16",)))
    check_precision("fp16", torch.device("cuda"))


def test_a_package_of_another_machine_is_refused(embedder, texts, tmp_path):
    out = tmp_path / "out"
    optimize(str(embedder), "bf16", out, calibration=texts)
    manifest = read_manifest(out)
    (out / "model.aoti.pt2").write_bytes(b"")
    write_manifest(out, replace(manifest, form="aoti", machine={"device": "cpu", "capability": "ppc64le VSX"}))
    with pytest.raises(ModelLoadError, match="ppc64le VSX"):
        Predictor(str(out))
    write_manifest(out, replace(manifest, form="aoti", versions={"torch": "2.0"}))
    with pytest.raises(ModelLoadError, match=r"compiled by torch 2\.0"):
        Predictor(str(out))

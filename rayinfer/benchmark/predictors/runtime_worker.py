"""Process of one runtime of predictors: reads work as lines of JSON, writes seconds.

`runtime_worker.py RUNTIME SETTINGS` runs under the runtime's own interpreter, where rayinfer may be missing: outside of
the functions that open runtimes it imports the standard library alone.
"""

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

BATCH = 32  # of runtimes that pad
MAX_TOKENS = 256
MEAN, SCALE = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

Encode = Callable[[list[str], bool], Any]  # texts in order of arrival, whether they may be sorted
Classify = Callable[[list[bytes]], Any]  # encoded images


def open_rayinfer(settings: dict[str, Any]) -> Encode | Classify:
    """Open our own predictor."""
    from rayinfer.predictors.predictor import Predictor

    predictor = Predictor(settings["model"], num_threads=settings["num_threads"], **settings["engine"])
    if settings["is_image"]:
        return lambda images: predictor.predict_class(images)
    return lambda texts, _: predictor.embed(texts, truncate=True)


def open_sentence_transformers(settings: dict[str, Any]) -> Encode:
    """Open sentence-transformers, which sorts texts by itself."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(settings["num_threads"])
    model = SentenceTransformer(settings["model"], device="cpu")
    return lambda texts, _: model.encode(texts, batch_size=BATCH, show_progress_bar=False)


def open_onnxruntime(settings: dict[str, Any]) -> Encode | Classify:
    """Open an export of the model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["num_threads"]
    file = _export(settings, "onnx-int8" if settings["is_int8"] else "onnx")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    return _over(settings, lambda *arrays: session.run(None, dict(zip(names, arrays, strict=True)))[0])


def open_openvino(settings: dict[str, Any]) -> Encode | Classify:
    """Open an export of the model in OpenVINO."""
    import openvino

    properties = {"INFERENCE_NUM_THREADS": settings["num_threads"], "INFERENCE_PRECISION_HINT": "f32"}
    file = _export(settings, "openvino-int8" if settings["is_int8"] else "openvino")
    compiled = openvino.Core().compile_model(str(file), "CPU", properties)
    return _over(settings, lambda *arrays: compiled(list(arrays))[0])


RUNTIMES = {
    "rayinfer": open_rayinfer,
    "sentence-transformers": open_sentence_transformers,
    "onnxruntime": open_onnxruntime,
    "openvino": open_openvino,
}


def _over(settings: dict[str, Any], run: Callable[..., Any]) -> Encode | Classify:
    return _image_classifier(run) if settings["is_image"] else _padded_encoder(settings["model"], run)


def _padded_encoder(model: str, run: Callable[..., Any]) -> Encode:
    """Tokenize and pad texts in batches, as they come or by length."""
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model) / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)

    def encode(texts: list[str], may_sort: bool) -> Any:
        ids = [each.ids for each in tokenizer.encode_batch(texts)]
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index])) if may_sort else list(range(len(ids)))
        for start in range(0, len(order), BATCH):
            part = [ids[index] for index in order[start : start + BATCH]]
            padded = np.zeros((len(part), max(map(len, part))), np.int64)
            mask = np.zeros_like(padded)
            for row, tokens in enumerate(part):
                padded[row, : len(tokens)], mask[row, : len(tokens)] = tokens, 1
            run(padded, mask)

    return encode


def _image_classifier(run: Callable[..., Any]) -> Classify:
    """Decode, resize and classify images one by one, which on a CPU is as fast as batches."""
    import numpy as np
    from PIL import Image

    def classify(images: list[bytes]) -> Any:
        for content in images:
            image = Image.open(io.BytesIO(content)).convert("RGB")
            scale = 256 / min(image.size)
            image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BILINEAR)
            left, top = (image.width - 224) // 2, (image.height - 224) // 2
            pixels = np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32) / 255
            run(np.ascontiguousarray(((pixels - MEAN) / SCALE).transpose(2, 0, 1)[None], np.float32))

    return classify


def _export(settings: dict[str, Any], kind: str) -> Path:
    """Export the model once; needs torch, transformers and the runtime's own converters beside it."""
    folder = Path(settings["exports"])
    file = folder / (f"{kind}.onnx" if kind.startswith("onnx") else f"{kind}.xml")
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    module, example, dynamic, samples = _module(settings)
    unfinished = folder / f"unfinished-{file.name}"
    if kind == "onnx":
        import torch

        torch.onnx.export(
            module, example, unfinished, dynamo=True, dynamic_shapes=dynamic, external_data=False, verbose=False
        )
    elif kind == "onnx-int8":
        from onnxruntime.quantization import QuantType, quantize_dynamic

        # Without VNNI sums of eight-bit products saturate: weights keep to seven.
        exact = _export(settings, "onnx")
        quantize_dynamic(exact, unfinished, weight_type=QuantType.QInt8, per_channel=True, reduce_range=not _has_vnni())
    else:
        _export_openvino(module, example, dynamic, samples, unfinished, is_int8=kind.endswith("int8"))
        unfinished.with_suffix(".bin").rename(file.with_suffix(".bin"))
    unfinished.rename(file)
    return file


def _export_openvino(module: Any, example: Any, dynamic: Any, samples: list[Any], file: Path, *, is_int8: bool) -> None:
    import openvino
    import torch

    with torch.no_grad():
        model = openvino.convert_model(torch.export.export(module, example, dynamic_shapes=dynamic))
    if is_int8:
        import nncf

        calibration = nncf.Dataset(samples, lambda arrays: [array.numpy() for array in arrays])
        model = nncf.quantize(model, calibration, model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(model, file, compress_to_fp16=False)


def _module(settings: dict[str, Any]) -> tuple[Any, Any, Any, list[Any]]:
    """Return the module with its whole answer, an example, its free dimensions, and inputs to calibrate with."""
    import torch
    from transformers import AutoModel, AutoModelForImageClassification

    class Embedder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = AutoModel.from_pretrained(settings["model"], dtype=torch.float32)

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            mask = attention_mask[..., None].to(hidden.dtype)
            return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1)

    class Classifier(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModelForImageClassification.from_pretrained(settings["model"], dtype=torch.float32)

        def forward(self, pixel_values: Any) -> Any:
            return self.model(pixel_values=pixel_values).logits

    batch = torch.export.Dim("batch", min=1, max=512)
    if settings["is_image"]:
        example = (torch.rand(2, 3, 224, 224),)  # of one image, exports would keep to one
        return Classifier().eval(), example, ({0: batch},), [example]
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(settings["model"]) / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_TOKENS)
    tokenizer.no_padding()
    encoded = [torch.tensor([tokenizer.encode(text).ids]) for text in settings["calibration"]]
    samples = [(ids, torch.ones_like(ids)) for ids in encoded]
    length = torch.export.Dim("length", min=1, max=512)
    example_ids = torch.ones(2, 16, dtype=torch.int64)
    return Embedder().eval(), (example_ids, example_ids.clone()), ({0: batch, 1: length},) * 2, samples


def _has_vnni() -> bool:
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text()
        return "avx512_vnni" in flags or "avx_vnni" in flags
    return False


def serve(runtime: str, settings: dict[str, Any]) -> None:
    """Open the runtime, report it, and run work until the input ends."""
    # Runtimes may print: all of that goes to standard error.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        run: Any = RUNTIMES[runtime](settings)
    except Exception as error:
        _send(replies, error=_one_line(error))
        raise
    _send(replies, ready=True)
    for line in sys.stdin:
        work = json.loads(line)
        try:
            arguments = [[Path(path).read_bytes() for path in work["images"]]] if "images" in work else _texts(work)
            repeats = []
            for _ in range(work.get("repeats", 1)):
                cpu, started = time.process_time(), time.perf_counter()
                run(*arguments)
                repeats.append((time.perf_counter() - started, time.process_time() - cpu))
            _send(replies, seconds=[each[0] for each in repeats], cpu_s=[each[1] for each in repeats])
        except Exception as error:
            _send(replies, error=_one_line(error))


def _texts(work: dict[str, Any]) -> list[Any]:
    return [work["texts"], work.get("may_sort", False)]


def _send(replies: TextIO, **message: Any) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


if __name__ == "__main__":
    serve(sys.argv[1], json.loads(sys.argv[2]))

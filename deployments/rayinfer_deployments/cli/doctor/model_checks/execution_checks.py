"""Checks of how the model computes: modes, gradients, threads, types, precision, and its share of the peak rate."""

import time
from collections import Counter
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import rayinfer_kernels
from rayinfer.config import EngineConfig
from rayinfer.engine.ranks.rank_coordinates import any_device
from rayinfer.engine.worker.cores import usable_cores
from rayinfer.errors import RayinferError
from rayinfer.models.checkpoints.model_folder import weight_files
from rayinfer.models.checkpoints.safetensors_header import read_safetensors_header
from rayinfer.models.loader import torch_dtype
from rayinfer.models.model_config import read_model_config
from rayinfer.models.quantized.quantized_checkpoint import measure_conversion
from rayinfer.optimization.mode_checks import excess, measured_model
from rayinfer.outputs import TokenDelta
from rayinfer.prediction_outputs import output_numbers
from rayinfer.predictors.build_engine import build_predictor_engine
from rayinfer_deployments.cli.doctor.model_checks.checked_model import CheckedModel
from rayinfer_deployments.cli.doctor.model_checks.results import CheckResult, failed, passed, warned

NUM_REPEATS = 4
SHOWN = 3
ADVISED_PEAK_SHARE, NEEDED_PEAK_SHARE = 0.25, 0.02
LEAST_FLOPS = 1e7  # below that a step is not about arithmetic
SLOWDOWN = 1.3  # of a type or of threads, which is no noise
NUM_COMPARED = 64
LEAST_MEAN_COSINE, LEAST_COSINE, MOST_FLIPPED = 0.995, 0.98, 0.03  # of reduced precision beside float32


class UsedModes(TorchFunctionMode):
    """Records under which modes torch's functions run, and whether their outputs record gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0
        self.num_outside_inference_mode = 0  # of those that read weights
        self.num_recorded = 0  # outputs that remember how they were made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See TorchFunctionMode."""
        output = func(*args, **(kwargs or {}))
        self.num_calls += 1
        if not torch.is_inference_mode_enabled():
            self.num_outside_inference_mode += any(isinstance(each, torch.nn.Parameter) for each in args)
        self.num_recorded += isinstance(output, torch.Tensor) and output.grad_fn is not None
        return output


def check_eval_mode(model: CheckedModel) -> CheckResult:
    """Find modules in training mode, among those that were built and those that run; and compute one input again."""
    name, called = "eval mode", {}

    def record(module: torch.nn.Module, _: Any) -> None:
        called[id(module)] = module

    request = model.samples.long()
    handle = torch.nn.modules.module.register_module_forward_pre_hook(record)
    try:
        outputs = [model.compute([request]).deltas[0] for _ in range(NUM_REPEATS)]
    finally:
        handle.remove()
    modules = {id(module): module for module in model.modules} | called
    training = Counter(type(module).__name__ for module in modules.values() if module.training)
    if training:
        kinds = ", ".join(f"{count} {kind}" for kind, count in training.most_common(SHOWN))
        reason = f"{training.total()} of {len(modules)} modules are in training mode: {kinds}"
        return failed(name, reason, "call .eval() on the module in the factory that builds it")
    if any(_bits(output) != _bits(outputs[0]) for output in outputs):
        reason = f"{NUM_REPEATS} computations of one input differ: dropout or other chance is at work"
        return failed(name, reason, "pass training=False to functions such as dropout")
    return passed(name, f"{len(modules)} modules, none in training mode; {NUM_REPEATS} equal outputs of one input")


def check_inference_mode(model: CheckedModel) -> CheckResult:
    """Compute under observation: no output may record how it was made."""
    name = "inference mode"
    with UsedModes() as used:
        model.compute([model.samples.short()])
    if used.num_recorded:
        reason = f"{used.num_recorded} of {used.num_calls} operations recorded gradients"
        return failed(name, reason, "leave out torch.enable_grad and torch.inference_mode(False)")
    if used.num_outside_inference_mode:
        reason = f"{used.num_outside_inference_mode} of {used.num_calls} operations ran outside of inference mode"
        return warned(name, reason, "leave out torch.inference_mode(False)")
    return passed(name, f"{used.num_calls} operations in inference mode, no gradient recorded")


def check_optimized_form(model: CheckedModel) -> CheckResult:
    """Compare the arithmetic of a long input with the peak rate of torch's own products, measured beside it."""
    name, request = "optimised form", model.samples.longest()
    what = f"kernels {rayinfer_kernels.cpu_kernels_status().path}" if model.samples.takes_text else "torch"
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter:
        model.compute([request])
    counted = counter.get_total_flops()
    flops = max(counted, _flops_of_matrices(model, request.num_input_tokens))
    if flops < LEAST_FLOPS:
        return passed(name, f"{what}; a step has {flops / 1e6:.2g} MFLOP, too few to be worth optimising")
    seconds, peak = model.seconds_of([request]), _peak_flops()
    share = flops / seconds / peak
    reason = f"{what}; {flops / seconds / 1e9:.0f} GFLOP/s, {share:.0%} of the {peak / 1e9:.0f} of large products"
    if share >= ADVISED_PEAK_SHARE:
        return passed(name, reason)
    remedy = "call torch.compile in the factory" if model.registered is not None else "see rayinfer optimize"
    if share < NEEDED_PEAK_SHARE:
        return failed(name, reason, f"{remedy}; look for loops over tensors and waits in the model")
    return warned(name, reason, remedy)


def check_threads(model: CheckedModel) -> CheckResult:
    """Compare all threads with one, and their number with the cores that may be used."""
    name, num_cores = "threads", len(usable_cores())
    if any_device().type != "cpu":
        return passed(name, "the model runs on a GPU")
    num_threads = torch.get_num_threads()
    if num_threads > num_cores:
        reason = f"{num_threads} threads on {num_cores} cores: they wait for each other"
        return failed(name, reason, f"--num-threads {num_cores}")
    if num_threads == 1:
        return passed(name, f"1 thread, {num_cores} cores")
    request = model.samples.long()
    many, one = [], []
    for _ in range(NUM_REPEATS):  # in turn, so that what else runs here meets both
        many.append(model.compute([request]).seconds)
        torch.set_num_threads(1)
        try:
            one.append(model.compute([request]).seconds)
        finally:
            torch.set_num_threads(num_threads)
    speedup = min(one) / min(many)
    reason = f"{num_threads} threads on {num_cores} cores, {speedup:.2f}x as fast as one"
    if speedup < 1 / SLOWDOWN:
        return warned(name, reason, "--num-threads 1 and more --replicas, or leave the cores to this service")
    return passed(name, reason)


def check_dtype(model: CheckedModel) -> CheckResult:
    """Name the types of the weights, and time products of a short one beside float32, which a CPU may emulate."""
    name = "dtype"
    tensors = [tensor for module in model.modules for tensor in module.parameters(recurse=False)]
    found = Counter(str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point())
    asked = model.config.dtype
    known = ", ".join(f"{kind} of {count} tensors" for kind, count in found.most_common()) or "no weights of torch"
    (output,) = model.compute([model.samples.short()]).deltas
    if output.prediction is not None and output.prediction.error:  # engines refuse what is not finite
        return failed(name, f"{known}; {output.prediction.error}", "--dtype float32")
    short = [kind for kind in {*found, asked} if kind in ("float16", "bfloat16")]
    if model.generates or not short or any_device().type != "cpu":
        return passed(name, f"{known}; outputs are finite")
    ratio = _reference_seconds(model, NUM_REPEATS)
    reason = f"{known}; {ratio:.2f}x the time of float32"
    if ratio > SLOWDOWN:
        return failed(name, f"{reason}: this CPU has no products of {short[0]}", "--dtype float32")
    return passed(name, reason)


def check_quantization(model: CheckedModel) -> CheckResult:
    """Compare a model of fewer bits with its float32 on real texts, or report what was measured of it."""
    name, mode = "quantization", model.config.quantization
    if mode is None:
        return passed(name, f"none: weights are those of the checkpoint{_published_format(model)}")
    if model.generates:
        assert model.folder is not None
        reason = excess(mode, measured_model(model.config.model, model.folder))
        if reason is None:
            return passed(name, f"{mode}: its perplexity was measured, and is within the limit")
        return warned(name, reason, f"rayinfer bench quality --modes {mode}, or another mode")
    requests = [model.samples.long(number) for number in range(NUM_COMPARED)]
    ours = np.stack([_numbers(delta) for delta in model.compute(requests).deltas])
    theirs = np.stack([_numbers(delta) for delta in _reference(model).compute(requests).deltas])
    return judge_agreement(name, mode, ours, theirs, is_classifier=bool(model_labels(model)))


def _published_format(model: CheckedModel) -> str:
    """Report the format of a checkpoint that was quantized by others, and what its conversion changes."""
    if model.folder is None or not model.generates:
        return ""
    dtype = torch_dtype(model.config.dtype, read_model_config(model.folder))
    conversion = measure_conversion(model.folder, dtype)
    return "" if conversion is None else f": {conversion}"


def judge_agreement(
    name: str, mode: str, ours: "np.ndarray[Any, Any]", theirs: "np.ndarray[Any, Any]", *, is_classifier: bool
) -> CheckResult:
    """Judge raw numbers of a mode beside float32's, a row for each input."""
    remedy = "another --quantization, or none"
    if is_classifier:
        flipped = float((ours.argmax(-1) != theirs.argmax(-1)).mean())
        reason = f"{mode}: {flipped:.1%} of {len(ours)} labels differ from float32, at most {MOST_FLIPPED:.0%} may"
        return passed(name, reason) if flipped <= MOST_FLIPPED else failed(name, reason, remedy)
    cosines = (ours * theirs).sum(-1) / (np.linalg.norm(ours, axis=-1) * np.linalg.norm(theirs, axis=-1))
    mean, worst = float(cosines.mean()), float(np.quantile(cosines, 0.01))
    reason = f"{mode}: cosine with float32 {mean:.4f} on average, {worst:.4f} at p01, of {len(ours)} texts"
    if mean >= LEAST_MEAN_COSINE and worst >= LEAST_COSINE:
        return passed(name, reason)
    return failed(name, f"{reason}; needed {LEAST_MEAN_COSINE} and {LEAST_COSINE}", remedy)


def model_labels(model: CheckedModel) -> tuple[str, ...]:
    """Return the labels of a classifier; of others nothing."""
    predictor = model.engine.description.predictor
    return () if predictor is None else predictor.labels


def _reference(model: CheckedModel) -> CheckedModel:
    """Load the same model in float32."""
    settings = {"dtype": "float32", "quantization": None}
    config: EngineConfig = model.config.model_copy(update=settings)
    engine = build_predictor_engine(config, model.folder)
    return CheckedModel(
        config=config,
        folder=model.folder,
        registered=model.registered,
        engine=engine,
        samples=model.samples,
        expectations=model.expectations,
    )


def _reference_seconds(model: CheckedModel, times: int) -> float:
    """Return the model's time relative to that of its float32, in turn."""
    reference, request = _reference(model), model.samples.long()
    pairs = [(model.compute([request]).seconds, reference.compute([request]).seconds) for _ in repeat(None, times)]
    reference.engine.exit()
    return min(ours for ours, _ in pairs) / min(theirs for _, theirs in pairs)


def _formulas() -> dict[Any, Any]:
    """Return the arithmetic of oneDNN's convolutions, which torch does not count."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return {}

    def convolution(_: torch.Tensor, weight: torch.Tensor, *args: Any, out_val: torch.Tensor, **kwargs: Any) -> int:
        return 2 * out_val.numel() * weight.numel() // out_val.shape[1]

    convolution._get_raw = True  # type: ignore[attr-defined]  # as torch's own formulas of tensors have it
    return {torch.ops.mkldnn._convolution_pointwise: convolution}


def _flops_of_matrices(model: CheckedModel, num_tokens: int) -> float:
    """Return the arithmetic of so many tokens in the layers' matrices, which our own kernels do not report."""
    if model.folder is None or not model.samples.takes_text:
        return 0.0
    files: list[Path] = weight_files(model.folder)
    entries = [entry for file in files for entry in read_safetensors_header(file).values()]
    in_layers = [each for each in entries if len(each.shape) == 2 and "layer" in each.name and "embed" not in each.name]
    return 2.0 * num_tokens * sum(each.shape[0] * each.shape[1] for each in in_layers)


def _peak_flops() -> float:
    """Measure torch's rate with large products of float32, on all of its threads."""
    a, b = torch.rand(512, 512), torch.rand(512, 2048)
    seconds = min(_seconds(lambda: a @ b) for _ in range(3 * NUM_REPEATS))
    return 2 * 512 * 512 * 2048 / seconds


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _bits(delta: TokenDelta) -> object:
    _raise_failure(delta)
    return delta.token_ids if delta.prediction is None else delta.prediction.data


def _numbers(delta: TokenDelta) -> "np.ndarray[Any, Any]":
    _raise_failure(delta)
    if delta.prediction is None or not delta.prediction.shape:
        return np.zeros(1, np.float32)  # token ids and named tensors: the engine refuses what is not finite
    return output_numbers(delta.prediction).ravel()


def _raise_failure(delta: TokenDelta) -> None:
    if delta.finish_reason in ("error", "timeout"):
        error = delta.prediction.error if delta.prediction is not None else ""
        raise RayinferError(f"an input of the checklist has ended with {delta.finish_reason}: {error}")

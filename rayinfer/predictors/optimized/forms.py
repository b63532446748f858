"""Forms that a predictor can be optimized to, and the limits on what each may change (no torch here)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from rayinfer.errors import ConfigError, shown

Storage = Literal[
    "graph", "weights"
]  # a graph with its weights, or weights that our code or transformers' computes with
CompileMode = Literal["default", "reduce-overhead", "max-autotune"]
COMPILE_MODES: tuple[CompileMode, ...] = ("default", "reduce-overhead", "max-autotune")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The most that a form may differ from its original."""

    max_difference: float  # of any number that a client gets: a probability, a channel of a unit vector
    min_agreement: float  # mean cosine of embeddings and tensors, share of equal classes, of pairs in the same order
    max_accuracy_loss: float = 0.01  # share of labelled items

    def __post_init__(self) -> None:
        for name in ("max_difference", "min_agreement", "max_accuracy_loss"):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and 0 <= value < float("inf")):
                raise ConfigError(f"{name} must be a number of 0 or more, got {shown(value)}")
        if self.min_agreement > 1:
            raise ConfigError(f"min_agreement must be at most 1, got {self.min_agreement}")

    def changed(
        self, max_difference: float | None, min_agreement: float | None, max_accuracy_loss: float | None
    ) -> "Limits":
        """Return these limits with those that a user has given."""
        given = {
            "max_difference": max_difference,
            "min_agreement": min_agreement,
            "max_accuracy_loss": max_accuracy_loss,
        }
        return replace(self, **{name: value for name, value in given.items() if value is not None})


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One form, as `--to` names it."""

    name: str
    storage: Storage
    limits: Limits
    file: str = ""  # of the graph
    package: str = ""  # that computes it, beside torch; installed by the extra `onnx`
    carries_code: bool = False  # its file may run code when it is loaded

    def limits_for(self, *, has_classes: bool) -> Limits:
        """Return the limits for a model of classes, or of vectors."""
        return (
            self.limits
            if has_classes
            else self.limits.changed(None, max(LEAST_COSINE, self.limits.min_agreement), None)
        )


_EXACT = Limits(max_difference=1e-4, min_agreement=0.999)
# Of classes: bfloat16 alone exchanges 3 % of MobileNetV2's best ones, near ties among a thousand.
_HALF = Limits(max_difference=0.15, min_agreement=0.95)
_EIGHT_BITS = Limits(max_difference=0.3, min_agreement=0.9)
LEAST_COSINE = 0.99  # of vectors, in every form: a mean cosine of 0.9 is a broken embedder

FORMS: Mapping[str, Form] = MappingProxyType(
    {
        form.name: form
        for form in (
            Form(name="torch-compile", storage="weights", limits=_EXACT),
            Form(name="onnx", storage="graph", limits=_EXACT, file="model.onnx", package="onnxruntime"),
            Form(name="torch-export", storage="graph", limits=_EXACT, file="model.pt2", carries_code=True),
            Form(name="aoti", storage="graph", limits=_EXACT, file="model.aoti.pt2", carries_code=True),
            Form(name="torchscript", storage="graph", limits=_EXACT, file="model.pt", carries_code=True),
            Form(name="fp16", storage="weights", limits=_HALF),
            Form(name="bf16", storage="weights", limits=_HALF),
            Form(name="int8-dynamic", storage="weights", limits=_EIGHT_BITS),
            Form(name="int8-static", storage="graph", limits=_EIGHT_BITS, file="model.onnx", package="onnxruntime"),
            Form(name="int8-weight-only", storage="weights", limits=_EIGHT_BITS),
        )
    }
)


@dataclass(frozen=True, slots=True)
class ChosenForm:
    """A form, and torch.compile's mode."""

    form: Form
    mode: CompileMode | None = None

    @property
    def name(self) -> str:
        """The form as `--to` takes it."""
        return self.form.name if self.mode is None else f"{self.form.name}:{self.mode}"


def parse_form(text: str) -> ChosenForm:
    """Read a form, as torch-compile:max-autotune; raises ConfigError that lists what there is."""
    name, colon, mode = text.partition(":")
    form = FORMS.get(name)
    if form is None:
        raise ConfigError(f"form {shown(text)} is not known: choose {', '.join(FORMS)}")
    if form.name != "torch-compile":
        if colon:
            raise ConfigError(f"only torch-compile has modes, got {shown(text)}")
        return ChosenForm(form)
    for known in COMPILE_MODES:
        if known == (mode if colon else "default"):
            return ChosenForm(form, known)
    raise ConfigError(f"torch-compile has no mode {shown(mode)}: choose {', '.join(COMPILE_MODES)}")

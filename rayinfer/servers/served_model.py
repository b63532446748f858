"""A served model, and lookup by model name and task."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rayinfer.errors import InvalidParameter, NotReady, RequestError, TaskNotServed, UnknownModel
from rayinfer.images.prompts import ImagePrompts
from rayinfer.kv_cache.adapter_id import adapter_id
from rayinfer.predictions import PredictionTask
from rayinfer.protocols import EngineControl, TextGenerator
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer

# Sent by `text-generation` and `huggingface_hub` where a protocol has them name a model.
PLACEHOLDERS = frozenset({"tgi", "dummy"})
MODEL_REQUIRED = "model_required"  # code of the error for a request that means no particular one of several

Task = PredictionTask | Literal["generate", "classify_images"]  # classify: texts

ALL_TASKS: tuple[Task, ...] = (
    "generate",
    "embed",
    "score",
    "classify",
    "token_classify",
    "classify_images",
    "token_embed",
    "infer",
)

# In the order in which a model is looked for that is to read a list of texts.
LIST_TASKS: tuple[Task, ...] = (
    *("embed", "score", "classify", "token_classify", "token_embed"),
    *("generate", "classify_images", "infer"),
)
WITHOUT_TEXTS: frozenset[Task] = frozenset(("classify_images", "infer"))

_PATHS: Mapping[Task, tuple[str, ...]] = {
    "generate": ("/v1/chat/completions", "/v1/completions", "/generate"),
    "embed": ("/v1/embeddings", "/embed", "/similarity", "/score", "/rerank", "/pooling"),
    "token_embed": ("/embed_all", "/pooling"),
    "classify": ("/classify", "/predict"),
    "classify_images": ("/v1/images/classify",),
    "token_classify": ("/pooling",),
    "score": ("/score", "/rerank"),
    "infer": ("/v2/models/NAME/infer",),
}
_NAMES: Mapping[Task, str] = {
    "generate": "generation of text",
    "embed": "embeddings",
    "token_embed": "embeddings of tokens",
    "classify": "classification of texts",
    "classify_images": "classification of images",
    "token_classify": "classification of tokens",
    "score": "scores of pairs",
    "infer": "inference on tensors",
}


AdapterOrigin = Literal["settings", "request", "folder"]
MAX_NAMED = 20  # names in an error message


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedAdapter:
    """A LoRA adapter of a served model: where its files are, and the digest of their content."""

    name: str
    folder: str
    digest: str
    base: str  # name of the model
    origin: AdapterOrigin  # what registered it

    @property
    def id(self) -> str:
        """Name and digest, as requests to engines have them."""
        return adapter_id(self.name, self.digest)


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedModel:
    """Everything a protocol needs to serve one model, or a model with an adapter under the adapter's name."""

    name: str
    generator: TextGenerator
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    created: int  # seconds since 1970
    engines: EngineControl | None = None  # where they can be controlled
    tool_format: str | None = None  # of its tool calls; None for what its chat template shows
    image_prompts: ImagePrompts | None = None  # of a model that reads images beside text
    adapter: ServedAdapter | None = None  # that every request of this name has

    @property
    def tasks(self) -> tuple[Task, ...] | None:
        """Tasks of the model; None while no engine has reported."""
        try:
            predictor = self.generator.describe().predictor
        except NotReady:
            return None
        if predictor is None:
            return ("generate",)
        if not predictor.image_size:
            return predictor.tasks
        return tuple("classify_images" if task == "classify" else task for task in predictor.tasks)

    @property
    def takes_images(self) -> bool:
        """Whether conversations may have images; False while no engine has reported."""
        try:
            return self.image_prompts is not None and self.generator.describe().takes_images
        except NotReady:
            return False

    @property
    def text_tokenizer(self) -> Tokenizer:
        """The tokenizer; raises TaskNotServed where the model reads no texts."""
        tasks = self.tasks
        if tasks is not None and set(tasks) <= WITHOUT_TEXTS:
            kind = "images" if "classify_images" in tasks else "tensors"
            raise TaskNotServed(f"The model {self.name!r} takes {kind} and no texts: it has no tokens.", "model")
        return self.tokenizer

    @property
    def max_model_len(self) -> int | None:
        """Longest text in tokens; None where no texts are read, and while no engine has reported."""
        tasks = self.tasks
        if tasks is None or set(tasks) <= WITHOUT_TEXTS:
            return None
        return self.generator.describe().max_model_len


def base_models(models: Mapping[str, ServedModel]) -> dict[str, ServedModel]:
    """Return the models themselves, without those that are one of them with an adapter."""
    return {name: model for name, model in list(models.items()) if model.adapter is None}


def names_of(models: Iterable[str]) -> str:
    """List names for an error message: not all of them, where there are many."""
    names = list(models)
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def find_model(models: Mapping[str, ServedModel], name: str | None, *tasks: Task) -> ServedModel:
    """Look up a model that does one of the tasks; without a name the only one that does the first of them is meant.

    Any model will do where no task is given. Raises UnknownModel, InvalidParameter, TaskNotServed or NotReady.
    """
    if not models:
        raise NotReady("No model is loaded yet.")
    if name is None or (name in PLACEHOLDERS and name not in models):
        return _only_model(list(base_models(models).values()) or list(models.values()), tasks)
    model = models.get(name)  # once, as adapters may be unloaded meanwhile
    if model is None:
        raise UnknownModel(f"The model {name!r} does not exist. Served here: {names_of(models)}.", "model")
    known = model.tasks if tasks else None
    if known is not None and not set(tasks) & set(known):
        raise _task_not_served(f"The model {name!r}", tasks, known)
    return model


def _only_model(models: Sequence[ServedModel], tasks: Sequence[Task]) -> ServedModel:
    known = [model.tasks for model in models] if tasks else [None] * len(models)
    able = [model for model, done in zip(models, known, strict=True) if done is None]
    for task in tasks:
        if doing := [model for model, done in zip(models, known, strict=True) if done is not None and task in done]:
            able += doing
            break
    if not able:
        served = [task for done in known for task in done or ()]
        raise _task_not_served("No model here", tasks, served)
    if len(able) > 1:
        names = names_of(model.name for model in able)
        raise InvalidParameter(
            f"model is required: this service serves more than one: {names}", "model", MODEL_REQUIRED
        )
    return able[0]


def _task_not_served(subject: str, tasks: Sequence[Task], served: Sequence[Task]) -> RequestError:
    """Make the error for a task that models do not do, which says where they answer."""
    verb = "does no" if subject != "No model here" else "does"
    paths = ", ".join(dict.fromkeys(path for task in dict.fromkeys(served) for path in _PATHS[task]))
    message = f"{subject} {verb} {_NAMES[tasks[0]]}. Paths that are served: {paths}."
    return TaskNotServed(message, "model")

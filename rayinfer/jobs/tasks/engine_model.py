"""Engine as the model of a job: one of generation or of predictions, whichever the model's folder holds."""

from dataclasses import dataclass
from pathlib import Path

from rayinfer.config import EngineConfig
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.engine.worker.cores import fill_machine, usable_cores
from rayinfer.jobs.providers import JobContext
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.models.predictor_kind import PredictorKind, predictor_kind
from rayinfer.predictors.build_engine import build_predictor_engine, check_predictor_settings
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer

WITHOUT_TEXT: tuple[PredictorKind, ...] = ("image", "tensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class EnginePlan:
    """Checked settings and folder of an engine that is yet to be built."""

    config: EngineConfig
    folder: Path
    kind: PredictorKind | None


@dataclass(frozen=True, slots=True)
class TextFiles:
    """Files of a model that turn text into tokens."""

    tokenizer: Tokenizer
    chat_template: ChatTemplate


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedEngine:
    """Engine that may step, and what turns text into its tokens."""

    engine: SteppedEngine
    text: TextFiles | None  # None: of images or tensors

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of a model of texts."""
        assert self.text is not None, "the model reads no texts"
        return self.text.tokenizer

    @property
    def chat_template(self) -> ChatTemplate:
        """Chat template of a model of texts."""
        assert self.text is not None, "the model reads no texts"
        return self.text.chat_template


@dataclass(frozen=True, slots=True)
class EngineProvider:
    """ModelProvider of engines; workers of one machine share its cores."""

    config: EngineConfig

    def initialize(self, context: JobContext) -> EnginePlan:
        """Find the model's folder and check the settings; raises ConfigError and ModelLoadError."""
        folder = resolve_model(self.config.model, progress=context.worker == 0)
        kind, mesh = predictor_kind(folder), context.mesh
        sizes = {"tensor_parallel_size": mesh.tensor_parallel, "pipeline_parallel_size": mesh.pipeline_parallel}
        config = self.config.model_copy(update={name: size for name, size in sizes.items() if size > 1})
        if kind is not None:
            check_predictor_settings(config)
        elif mesh.data_parallel > 1:
            config = _with_share_of_cores(config, mesh.data_parallel)
        return EnginePlan(config=config, folder=folder, kind=kind)

    def load(self, model: EnginePlan, context: JobContext) -> LoadedEngine:
        """Build the engine, which reads its ranks' parts of the weights."""
        engine: SteppedEngine
        if model.kind is None:
            engine = build_engine(model.config, model.folder)
        else:
            engine = build_predictor_engine(model.config, model.folder)
        text = None
        if model.kind not in WITHOUT_TEXT:
            text = TextFiles(Tokenizer.from_folder(model.folder), ChatTemplate.from_folder(model.folder))
        return LoadedEngine(engine=engine, text=text)


def _with_share_of_cores(config: EngineConfig, num_workers: int) -> EngineConfig:
    num_threads = config.num_threads or max(1, len(usable_cores()) // num_workers)
    pin_threads = config.pin_threads
    if pin_threads is None:
        pin_threads = fill_machine(num_threads, num_workers)
    return config.model_copy(update={"num_threads": num_threads, "pin_threads": pin_threads})

"""Torch modules as models of jobs: made on the meta device, then each stage reads its own tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import safetensors
import torch

from rayinfer.errors import ConfigError, ModelLoadError
from rayinfer.jobs.providers import JobContext
from rayinfer.jobs.workers.stage_processes import StageProcesses

StageFactory = Callable[[int, int], torch.nn.Module]  # from the stage's number and that of all stages


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchModelProvider:
    """ModelProvider of a module, or of its pipeline stages, each in a process of its own.

    `make_stage` builds the whole module for `(0, 1)`; it travels by pickle where there are several. A module with
    buffers that no checkpoint holds has a method `reset_parameters`, which fills them.
    """

    make_stage: StageFactory
    checkpoint: Path  # a safetensors file
    name_in_checkpoint: Callable[[str], str] = str  # from a parameter's name
    device: str = "cpu"

    def initialize(self, context: JobContext) -> list[torch.nn.Module]:
        """Make every stage on the meta device; raises ConfigError and ModelLoadError."""
        num_stages = context.mesh.pipeline_parallel
        if context.mesh.tensor_parallel > 1:
            raise ConfigError("tensor_parallel must be 1 for torch modules")
        if not self.checkpoint.is_file():
            raise ModelLoadError(f"{self.checkpoint}: no such file")
        with torch.device("meta"):
            return [self.make_stage(stage, num_stages) for stage in range(num_stages)]

    def load(self, model: list[torch.nn.Module], context: JobContext) -> "torch.nn.Module | StageProcesses":
        """Read the weights, each stage its own."""
        if len(model) == 1:
            return self.load_stage(model[0])
        return StageProcesses([_StageLoader(self, stage, len(model)) for stage in range(len(model))])

    def load_stage(self, module: torch.nn.Module) -> torch.nn.Module:
        """Allocate a module that is on the meta device, and read its tensors; raises ModelLoadError."""
        module.to_empty(device=self.device)
        persistent = set(module.state_dict())
        missing = [name for name, _ in module.named_buffers() if name not in persistent]
        if (reset := getattr(module, "reset_parameters", None)) is not None:
            reset()
        elif missing:
            raise ModelLoadError(f"{type(module).__name__} has buffers outside of checkpoints and no reset_parameters")
        try:
            with safetensors.safe_open(self.checkpoint, framework="pt", device=self.device) as file:
                known = set(file.keys())
                wanted = {name: self.name_in_checkpoint(name) for name in persistent}
                if absent := sorted(set(wanted.values()) - known):
                    raise ModelLoadError(f"{self.checkpoint} lacks {', '.join(absent[:5])}")
                module.load_state_dict({name: file.get_tensor(source) for name, source in wanted.items()})
        except (RuntimeError, safetensors.SafetensorError) as error:
            raise ModelLoadError(f"{self.checkpoint}: {' '.join(str(error).split())}") from None
        return module.eval()


@dataclass(frozen=True, slots=True)
class _StageLoader:
    """Loader of one stage, which runs in the stage's process."""

    provider: TorchModelProvider
    stage: int
    num_stages: int

    def __call__(self) -> torch.nn.Module:
        with torch.device("meta"):
            module = self.provider.make_stage(self.stage, self.num_stages)
        return self.provider.load_stage(module)

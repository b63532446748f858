"""Systems under test: a program in one mode, with the commands of its engine and its server."""

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

Figures = dict[str, float]  # by the names that `works.py` gives them


class MeasuredEngine(Protocol):
    """An engine that is up and can be measured again and again."""

    @property
    def version(self) -> str:
        """Return the engine's version."""
        ...

    @property
    def works(self) -> Collection[str]:
        """Return the names of the works that it supports."""
        ...

    def measure(self, work: str) -> Figures:
        """Do the work once; raises RayinferError."""
        ...

    def pause(self) -> None:
        """Use no processor time until `resume`, while another engine is measured."""
        ...

    def resume(self) -> None:
        """Resume after `pause`."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """Command line of a server; `{port}` in its arguments stands for the port."""

    arguments: list[str]
    ready_path: str  # answers 200 once requests are taken
    model: str  # its name there
    version: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Contender:
    """One program in one mode; an engine or server that it lacks is None."""

    name: str
    mode: str
    weight_bits: int  # 16, 8 or 4: only contenders of equal width are compared
    open_engine: Callable[[Path], AbstractContextManager[MeasuredEngine]] | None  # given the file for its log
    server: ServerCommand | None
    concession: str | None = None  # why it needed `allow_inaccurate_quantization`, which was set

    @property
    def label(self) -> str:
        """Return its name in tables."""
        return f"{self.name} {self.mode}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Missing:
    """A contender that cannot take part, and why."""

    label: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Arguments of every adapter: the model, the machine, and the folder of the peers."""

    model: str  # as asked for
    model_folder: Path  # a Hugging Face folder
    vocab_size: int  # prompts are drawn below it
    peers_folder: Path
    cpus: tuple[int, ...]  # that every contender gets
    cpu_flags: frozenset[str]
    programs: dict[str, Path] = field(default_factory=dict)  # by peer: where it is if not in the peers' folder

    @property
    def num_threads(self) -> int:
        """Return the number of threads of every contender."""
        return len(self.cpus)

    @property
    def converted_models(self) -> Path:
        """Return the folder of the model in the peers' own formats."""
        return self.peers_folder / "models" / Path(self.model).name

    @property
    def multiplies_bfloat16(self) -> bool:
        """Return whether the processor has bfloat16 products."""
        return bool({"avx512_bf16", "amx_bf16"} & self.cpu_flags)

    def with_all_cores(self, arguments: list[str], **variables: str) -> list[str]:
        """Prefix a command with `env`, so that no setting of ours takes cores away from it."""
        settings = {"OMP_NUM_THREADS": str(self.num_threads), "TOKENIZERS_PARALLELISM": "false", **variables}
        return ["env", "-u", "OMP_WAIT_POLICY", *(f"{name}={value}" for name, value in settings.items()), *arguments]

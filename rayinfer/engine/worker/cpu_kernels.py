"""The compiled CPU kernels of this process, from the cache folder."""

import rayinfer_kernels
from rayinfer.config import cache_folder
from rayinfer.startup_steps import CountedStartupStep


def use_cpu_kernels() -> None:
    """Load the kernels; compiling them first, if need be, is reported as a start step."""
    rayinfer_kernels.configure(cache_folder() / "kernels", on_progress=CountedStartupStep("compiling kernels"))

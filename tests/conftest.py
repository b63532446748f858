"""Settings of the environment that must stand before torch or Ray are imported anywhere, and what all tests share."""

import contextlib
import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from rayinfer.config import cache_folder
from support.kernels.gpu_tests import NUM_GPUS, may_have_gpu_tests

# No test may reach a model hub: what a test needs it makes, or takes from the cached embedded model.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
# Tokenizers would warn, and could hang, when a test starts processes after using its threads.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Ray would otherwise try to report its use.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

# A call of Ray's without ray.init fails instead of starting a cluster in the test process.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

# Kernels for GPUs are run by Triton's interpreter, unless there is a GPU. Triton asks when it is imported.
if not NUM_GPUS:
    os.environ["TRITON_INTERPRET"] = "1"

# Workers side by side have one core each; left alone, each would start a thread on every core.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"

# Importing tests makes little garbage; see pytest_collection_finish.
gc.disable()

# A shell that starts the tests with `&` has SIGINT ignored; a test that interrupts itself needs Python's own handler.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Choose how much is tested; let a run of `tests/faults` keep its table, and choose its model and longest load."""
    parser.addoption("--every-case", action="store_true", help="run all cases where a part of them stands for the rest")
    parser.addoption("--fault-results", metavar="FOLDER", help="write the table of faults here, as Markdown and JSON")
    models = ("tiny", "embedded")
    parser.addoption("--fault-model", choices=models, default="tiny", help="what the services serve that are broken")
    parser.addoption("--image-kills", type=int, default=50, help="engines to kill under streams with images")
    parser.addoption("--adapter-seconds", type=float, default=600.0, help="how long adapters are loaded, with kills")


@pytest.fixture(scope="session")
def kernel_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of this run that leads to the machine's C++ kernels: runs and workers compile each once."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the workers have it in common
    folder /= "kernels"
    compiled = cache_folder() / "kernels"
    compiled.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):  # another worker was first
        folder.symlink_to(compiled)
    return folder


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`-m gpu` imports no file without such tests: a machine that is lent for its GPU has few packages."""
    is_for_gpus = config.option.markexpr == "gpu"
    return True if is_for_gpus and not may_have_gpu_tests(collection_path, max(1, NUM_GPUS)) else None


@pytest.hookimpl(trylast=True)  # most tests that need GPUs are deselected by then
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need more GPUs than there are, and the cases that others stand for."""

    def is_left_out(item: pytest.Item) -> bool:
        gpu_marks = list(item.iter_markers("gpu"))  # a GPU is fast enough for every case
        is_one_of_many = item.get_closest_marker("every_case") is not None and not gpu_marks
        needs_more = any(mark.args and mark.args[0] > NUM_GPUS for mark in gpu_marks)
        return needs_more or (is_one_of_many and not config.getoption("--every-case"))

    if left_out := {item for item in items if is_left_out(item)}:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Collect garbage from here on, but not what was imported and collected: walking through it took minutes."""
    gc.freeze()
    gc.enable()


class ByFile(LoadScopeScheduling):
    """Scheduler that keeps tests sharing an expensive fixture on one worker: those of a file, and of some folders.

    Engines on a GPU compile and record longer than a fixture takes: tests of such a file are shared out one by one.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.endswith("_on_a_gpu.py"):
            return nodeid
        return next((room for room in ("tests/golden", "tests/invariance") if file.startswith(room)), file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Say how workers share the tests."""
    return ByFile(config, log)

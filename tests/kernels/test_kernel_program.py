"""Kernels under a test program without Python, on this machine and cross-compiled for AArch64 in an emulator."""

import re
from dataclasses import dataclass

import filelock
import pytest

from rayinfer_kernels.cpu.build import CompilerSettings, compile_library, is_intact
from rayinfer_kernels.cpu.processor import MACHINE_PATHS
from support.kernels.kernel_program import compile_program, link_program, run_program

LEAST_CHECKS = 2500


def num_checks(output: str) -> int:
    assert "FAILED" not in output
    return sum(int(count) for count in re.findall(r": (\d+) checks, 0 failed", output))


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    return compile_program(tmp_path_factory.mktemp("program"))


def test_the_program_finds_no_error_in_the_kernels_of_this_machine(isa_library, objects, tmp_path):
    assert num_checks(run_program(link_program(objects, isa_library.path, tmp_path / "program"))) > LEAST_CHECKS


CROSS_COMPILER = "aarch64-linux-gnu-g++"


@dataclass(frozen=True)
class Emulated:
    """An AArch64 kernel path, and a processor without the instructions of the next one, as far as QEMU knows one."""

    path: str
    processor: str

    @property
    def settings(self) -> CompilerSettings:
        return CompilerSettings(CROSS_COMPILER, self.path, machine="aarch64")

    @property
    def command(self) -> list[str]:
        return ["qemu-aarch64", "-cpu", self.processor, "-L", "/usr/aarch64-linux-gnu"]


EMULATED = [Emulated("portable", "cortex-a57"), Emulated("neon-dotprod", "neoverse-n1"), Emulated("neon-bf16", "max")]


@pytest.fixture(scope="module")
def cross_objects(tmp_path_factory):
    return compile_program(tmp_path_factory.mktemp("program"), CROSS_COMPILER)


@pytest.mark.aarch64
@pytest.mark.parametrize("emulated", EMULATED, ids=lambda emulated: emulated.path)
def test_the_program_finds_no_error_in_the_kernels_of_aarch64(emulated, cross_objects, kernel_folder, tmp_path):
    library = kernel_folder / f"aarch64-{emulated.settings.fingerprint()}.so"
    with filelock.FileLock(library.with_suffix(".lock")):
        if not is_intact(library):
            compile_library(library, emulated.settings, lambda num_done, num_sources: None)
    program = link_program(cross_objects, library, tmp_path / "program", CROSS_COMPILER)
    assert num_checks(run_program(program, emulated.command)) > LEAST_CHECKS


@pytest.mark.aarch64
@pytest.mark.parametrize("path", MACHINE_PATHS["aarch64"])
def test_the_cross_compiler_compiles_every_path_of_aarch64_as_its_own_name(path):
    assert {each.path for each in EMULATED} == set(MACHINE_PATHS["aarch64"])
    assert CompilerSettings(CROSS_COMPILER, path, machine="aarch64").path_name() == path

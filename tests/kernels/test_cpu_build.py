import ctypes
import os
import platform
import subprocess
import sys
import textwrap
import time

import pytest
import torch

import rayinfer_kernels
from rayinfer_kernels.cpu.build import (
    KERNEL_PATHS,
    SOURCE_FOLDER,
    CompilerSettings,
    KernelBuildFailed,
    build_cpu_library,
)
from rayinfer_kernels.cpu.kernels import CpuKernels
from rayinfer_kernels.cpu.prebuilt import PrebuiltKernels
from rayinfer_kernels.cpu.processor import MACHINE_PATHS

NATIVE = CompilerSettings("g++", "native")


def compiles(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(script)]
    path = os.pathsep.join(sys.path)
    return subprocess.run(
        command, env=os.environ | {"PYTHONPATH": path} | environment, capture_output=True, text=True, timeout=120
    )


def compiler_that(folder, action: str) -> str:
    """A g++ that notes each library that it makes in `folder`, and does what `action` says for each of its outputs."""
    script = folder / "compiler"
    script.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo one && exit 0\n'
        f'case "$*" in *-shared*) echo run >> {folder}/runs;; esac\n{action}\n'
    )
    script.chmod(0o755)
    return str(script)


def runs_of(folder) -> int:
    return len((folder / "runs").read_text().split()) if (folder / "runs").exists() else 0


def test_a_second_process_takes_the_library_from_the_cache(tmp_path, library):
    folder = tmp_path / "cache"
    copying = compiler_that(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"')
    settings = CompilerSettings(copying, "native")
    first, second = build_cpu_library(folder, settings), build_cpu_library(folder, settings)
    assert first.path == second.path
    assert runs_of(tmp_path) == 1
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".sha256", ".so"]


def test_two_processes_at_once_compile_once(tmp_path, library):
    copying = compiler_that(tmp_path, f'sleep 0.5; while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"')
    script = f"""
        from pathlib import Path
        from rayinfer_kernels.cpu.build import CompilerSettings, build_cpu_library
        print(build_cpu_library(Path({str(tmp_path / "cache")!r}), CompilerSettings({copying!r}, "native")).path)
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=environment, text=True) for _ in range(2)]
    outputs = {process.communicate(timeout=100)[0] for process in processes}
    assert len(outputs) == 1
    assert outputs.pop().strip().endswith(".so")
    assert runs_of(tmp_path) == 1


def test_progress_is_reported_per_compiled_source_and_not_for_cached_libraries(tmp_path, library):
    folder, told = tmp_path / "cache", []
    copying = compiler_that(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"')
    settings = CompilerSettings(copying, "native")
    build_cpu_library(folder, settings, lambda *counts: told.append(counts))
    num_sources = len(list(SOURCE_FOLDER.rglob("*.cpp")))
    assert told == [(num_done, num_sources) for num_done in range(num_sources + 1)]
    told.clear()
    build_cpu_library(folder, settings, lambda *counts: told.append(counts))
    assert told == []


@pytest.mark.parametrize("damage", [b"", b"\x7fELF garbage", None])
def test_a_damaged_library_is_compiled_anew(tmp_path, library, damage):
    folder = tmp_path / "cache"
    copying = compiler_that(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"')
    path = build_cpu_library(folder, CompilerSettings(copying, "native")).path
    damaged = path.read_bytes()[:-100] if damage is None else damage
    path.unlink()  # it is loaded: it must not change under the loader's feet
    path.write_bytes(damaged)
    again = build_cpu_library(folder, CompilerSettings(copying, "native"))
    assert runs_of(tmp_path) == 2
    assert CpuKernels(again.handle, torch.float32).silu_and_mul(torch.ones(2, 4)).shape == (2, 2)


def test_a_killed_compiler_leaves_nothing_that_looks_complete(tmp_path, library):
    folder = tmp_path / "cache"
    killed = compiler_that(tmp_path, 'while [ "$1" != -o ]; do shift; done; head -c 500 /bin/sh > "$2"; kill -9 $$')
    with pytest.raises(KernelBuildFailed):
        build_cpu_library(folder, CompilerSettings(killed, "native"))
    assert not list(folder.glob("*.so"))
    mended = compiler_that(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"')
    assert build_cpu_library(folder, CompilerSettings(mended, "native")).path.exists()


def test_a_build_that_is_killed_lets_the_next_one_begin_at_once_and_leaves_nothing_behind(tmp_path, library):
    folder, begun = tmp_path / "cache", tmp_path / "begun"
    slow = compiler_that(tmp_path, f"touch {begun}; exec sleep 20")  # it outlives who started it
    script = f"""
        from pathlib import Path
        from rayinfer_kernels.cpu.build import CompilerSettings, build_cpu_library
        build_cpu_library(Path({str(folder)!r}), CompilerSettings({slow!r}, "native"))
    """
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)], env=environment)
    while not begun.exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.kill()
    process.wait()
    assert [path.name for path in folder.glob(".cpu-*")]
    copying = compiler_that(tmp_path, f'while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"')
    started = time.monotonic()
    build_cpu_library(folder, CompilerSettings(copying, "native"))
    assert time.monotonic() - started < 10
    assert sorted(path.suffix for path in folder.iterdir()) == [".lock", ".sha256", ".so"]


def test_a_compiler_that_fails_is_quoted(tmp_path):
    failing = compiler_that(tmp_path, "echo 'x.cpp:1: error: no such thing' >&2; exit 1")
    with pytest.raises(KernelBuildFailed, match="error: no such thing"):
        build_cpu_library(tmp_path / "cache", CompilerSettings(failing, "native"))


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KernelBuildFailed, match=str(tmp_path / "file")):
        build_cpu_library(tmp_path / "file" / "cache", NATIVE)


def test_other_flags_make_another_library():
    assert NATIVE.fingerprint() != CompilerSettings("g++", "x86-64-v2").fingerprint()
    assert NATIVE.fingerprint() == CompilerSettings("g++", "native").fingerprint()


def test_a_name_that_the_compiler_does_not_know_is_quoted(tmp_path):
    with pytest.raises(KernelBuildFailed, match="no-such-isa"):
        build_cpu_library(tmp_path, CompilerSettings("g++", "no-such-isa"))


def test_instructions_that_the_processor_lacks_are_named_before_anything_is_compiled(tmp_path):
    foreign = "armv9-a" if platform.machine() == "aarch64" else "knm"  # no other processor has AVX512_4VNNIW
    with pytest.raises(KernelBuildFailed, match=r"(?s)knm.*AVX512ER|armv9-a"):
        build_cpu_library(tmp_path, CompilerSettings("g++", foreign))
    assert not list(tmp_path.iterdir())


def test_every_path_that_runs_here_is_compiled_as_its_own_name(tmp_path):
    paths = rayinfer_kernels.runnable_kernel_paths()
    assert paths[0] == NATIVE.path_name()
    assert set(paths) <= set(KERNEL_PATHS)
    for path in paths:
        settings = CompilerSettings("g++", path)
        settings.check_that_it_runs_here()
        assert settings.path_name() == path
    for path in set(KERNEL_PATHS) - {"native", *paths}:
        with pytest.raises(KernelBuildFailed, match=r"that this processor lacks|not"):
            CompilerSettings("g++", path).check_that_it_runs_here()


# Macros of the compiler, by what it was called with.
AARCH64_MACROS = {
    "-march=armv8-a": "__ARM_FEATURE_FMA",
    "-march=armv8.2-a+dotprod": "__ARM_FEATURE_FMA __ARM_FEATURE_ATOMICS __ARM_FEATURE_DOTPROD",
    "-march=armv8.2-a+dotprod+bf16": "__ARM_FEATURE_FMA __ARM_FEATURE_ATOMICS __ARM_FEATURE_DOTPROD"
    " __ARM_FEATURE_BF16_VECTOR_ARITHMETIC",
}


def aarch64_compiler(folder, native: str) -> str:
    """A compiler that knows the macros of AArch64's paths, on a processor that has those of `native`."""
    macros = AARCH64_MACROS | {"-mcpu=native": AARCH64_MACROS[native]}
    cases = "\n".join(f'"{flag}") echo "{names}";;' for flag, names in macros.items())
    script = folder / "aarch64-g++"
    script.write_text(f'#!/bin/sh\nfor name in $(case "$1" in {cases} esac); do echo "#define $name 1"; done\n')
    script.chmod(0o755)
    return str(script)


@pytest.mark.parametrize(
    ("native", "runnable"),
    [
        ("-march=armv8-a", ["portable"]),
        ("-march=armv8.2-a+dotprod", ["neon-dotprod", "portable"]),
        ("-march=armv8.2-a+dotprod+bf16", ["neon-bf16", "neon-dotprod", "portable"]),
    ],
)
def test_a_processor_of_aarch64_runs_the_paths_whose_instructions_it_has(tmp_path, native, runnable):
    compiler = aarch64_compiler(tmp_path, native)
    assert rayinfer_kernels.runnable_kernel_paths(compiler, PrebuiltKernels(tmp_path), "aarch64") == runnable
    for path in MACHINE_PATHS["aarch64"]:
        settings = CompilerSettings(compiler, path, machine="aarch64")
        assert settings.path_name() == path
        if path in runnable:
            settings.check_that_it_runs_here()
        else:
            with pytest.raises(KernelBuildFailed, match="that this processor lacks: ARM_FEATURE"):
                settings.check_that_it_runs_here()


@pytest.mark.parametrize(("machine", "other"), [("aarch64", "x86_64"), ("x86_64", "aarch64")])
def test_paths_of_another_machine_are_refused_by_its_name(machine, other):
    for path in set(MACHINE_PATHS[other]) - {"portable"}:
        with pytest.raises(KernelBuildFailed, match=f"{path}.*those of {other}"):
            CompilerSettings("g++", path, machine=machine).check_that_it_runs_here()


def test_every_path_but_native_is_some_machine_s():
    assert {"native", *MACHINE_PATHS["x86_64"], *MACHINE_PATHS["aarch64"]} == set(KERNEL_PATHS)


def test_a_compiler_for_aarch64_is_asked_for_no_vectors_of_x86(tmp_path):
    for path in ("native", *MACHINE_PATHS["aarch64"]):
        command = CompilerSettings("g++", path, machine="aarch64").compile_command(tmp_path, tmp_path)
        assert not [flag for flag in command if "vector-width" in flag or "x86" in flag]


def test_a_path_that_is_required_is_not_replaced_by_the_reference(tmp_path):
    done = compiles(
        f"""
        from pathlib import Path
        import rayinfer_kernels
        try:
            rayinfer_kernels.configure(Path({str(tmp_path)!r}), "knm", is_required=True)
        except rayinfer_kernels.KernelBuildFailed as error:
            print("refused", error)
        """
    )
    assert done.stdout.startswith("refused 'knm' has instructions that this processor lacks: "), done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("isa", ["knm", "no-such-isa"])
def test_a_process_that_asks_for_what_it_cannot_have_runs_the_reference_and_warns_once(tmp_path, isa):
    done = compiles(
        f"""
        from pathlib import Path
        import torch
        import rayinfer_kernels
        from rayinfer_kernels import ops
        rayinfer_kernels.configure(Path({str(tmp_path)!r}), isa={isa!r})
        print(ops.silu_and_mul(torch.ones(2, 4)).shape, rayinfer_kernels.cpu_kernels_status().is_active)
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "torch.Size([2, 2]) False"
    assert done.stderr.count("The CPU kernels cannot be built") == 1


def test_compilers_run_side_by_side(tmp_path, library):
    running = f"{tmp_path}/running"
    waiting = f'''case "$*" in *-shared*) ;; *) echo x >> {running}
        for i in $(seq 100); do [ "$(wc -l < {running})" -ge 2 ] && break; sleep 0.05; done
        [ "$(wc -l < {running})" -ge 2 ] || exit 1;; esac
        while [ "$1" != -o ]; do shift; done; cp {library.path} "$2"'''
    assert build_cpu_library(
        tmp_path / "cache", CompilerSettings(compiler_that(tmp_path, waiting), "native")
    ).path.exists()


def test_without_a_compiler_the_reference_runs_and_one_warning_says_so(tmp_path):
    done = compiles(
        f"""
        from pathlib import Path
        import torch
        import rayinfer_kernels
        from rayinfer_kernels import ops, reference
        for _ in range(2):  # as two engines do
            rayinfer_kernels.configure(Path({str(tmp_path)!r}))
        print(rayinfer_kernels.cpu_kernels_status())
        x = torch.randn(3, 8)
        assert torch.equal(ops.silu_and_mul(x), reference.silu_and_mul(x))
        """,
        PATH="",
    )
    assert done.returncode == 0, done.stderr
    assert "is_active=False" in done.stdout
    assert "no compiler: g++ is not installed" in done.stdout
    assert done.stderr.count("The CPU kernels cannot be built") == 1


def test_the_operations_are_the_compiled_ones_once_configured_and_torch_s_openmp_serves_both(library):
    done = compiles(
        f"""
        from pathlib import Path
        import torch
        import rayinfer_kernels
        from rayinfer_kernels import ops, selection
        before = rayinfer_kernels.cpu_kernels_status()
        rayinfer_kernels.configure(Path({str(library.path.parent)!r}))
        print(before.is_active, rayinfer_kernels.cpu_kernels_status().is_active)
        print(*(type(selection.implementation_for(torch.ones(1, dtype=kind))).__name__
                for kind in (torch.float32, torch.bfloat16, torch.float16)))
        torch.randn(500, 500) @ torch.randn(500, 500)
        ops.silu_and_mul(torch.randn(1000, 1000))
        print(len({{line.split()[-1] for line in open("/proc/self/maps") if "gomp" in line}}))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["False True", "CpuKernels CpuKernels module", "1"]


def test_the_library_needs_nothing_of_torch(library):
    names = subprocess.run(["ldd", str(library.path)], capture_output=True, text=True, check=True).stdout
    assert "torch" not in names.replace("torch/lib/libgomp", "")
    assert ctypes.CDLL(str(library.path)).rayinfer_linear_float32

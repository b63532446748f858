import hashlib
import shutil

import pytest

import rayinfer_kernels
from rayinfer_kernels.cpu.build import KernelBuildFailed
from rayinfer_kernels.cpu.prebuilt import PrebuiltKernels, sources_digest
from rayinfer_kernels.cpu.processor import NEEDED_FLAGS, processor_flags, runnable_paths

AVX2 = NEEDED_FLAGS["avx2"]
NO_COMPILER = "/nowhere/g++"


@pytest.fixture(autouse=True)
def nothing_configured():
    yield
    rayinfer_kernels.configure(None)


@pytest.fixture
def folder(tmp_path, library):
    """Make a wheel's folder, of kernels compiled for this processor under the names of two paths."""
    for path in ("avx2", "portable"):
        put(tmp_path / "prebuilt", f"{path}-{sources_digest()}", library.path.read_bytes())
    return tmp_path / "prebuilt"


def put(folder, stem, content):
    folder.mkdir(exist_ok=True)
    (folder / f"{stem}.so").write_bytes(content)
    (folder / f"{stem}.sha256").write_text(hashlib.sha256(content).hexdigest())


def configure(prebuilt, tmp_path, isa=None, compiler=NO_COMPILER, **options):
    rayinfer_kernels.configure(tmp_path / "cache", isa, compiler, prebuilt=prebuilt, **options)
    return rayinfer_kernels.cpu_kernels_status()


def test_the_processor_s_features_give_the_paths_that_the_compiler_finds(tmp_path):
    flags = processor_flags()
    assert flags is not None
    compiled = rayinfer_kernels.runnable_kernel_paths(prebuilt=PrebuiltKernels(tmp_path))
    assert runnable_paths(flags) == compiled


NEOVERSE_N1 = frozenset({"fp", "asimd", "aes", "crc32", "atomics", "asimdrdm", "asimddp"})


@pytest.mark.parametrize(
    ("flags", "paths"),
    [
        ({"fp", "asimd", "crc32"}, ["portable"]),
        (NEOVERSE_N1, ["neon-dotprod", "portable"]),
        (NEOVERSE_N1 | {"bf16", "i8mm", "sve"}, ["neon-bf16", "neon-dotprod", "portable"]),
    ],
)
def test_features_of_aarch64_give_its_paths(flags, paths):
    assert runnable_paths(flags) == paths


def test_prebuilt_kernels_run_without_a_compiler(folder, tmp_path):
    status = configure(PrebuiltKernels(folder, AVX2), tmp_path)
    assert (status.is_active, status.path, status.name) == (True, "avx2", "prebuilt avx2")
    assert not (tmp_path / "cache").exists()
    assert rayinfer_kernels.runnable_kernel_paths(NO_COMPILER, PrebuiltKernels(folder, AVX2)) == ["avx2", "portable"]


def test_a_chosen_path_is_loaded_and_one_that_is_lacking_refused(folder, tmp_path):
    prebuilt = PrebuiltKernels(folder, AVX2)
    assert configure(prebuilt, tmp_path, "portable", is_required=True).name == "prebuilt portable"
    with pytest.raises(KernelBuildFailed, match="'avx512' has instructions that this processor lacks: avx512bw,"):
        configure(prebuilt, tmp_path, "avx512", is_required=True)


@pytest.mark.parametrize("damage", ["other sources", "cut off", "no digest"])
def test_libraries_that_do_not_fit_the_sources_are_not_loaded(folder, tmp_path, damage):
    for file in folder.glob("*.so"):
        if damage == "other sources":
            file.rename(file.with_stem(f"{file.stem}0"))
        elif damage == "cut off":
            file.write_bytes(file.read_bytes()[:1000])
        else:
            file.with_suffix(".sha256").unlink()
    prebuilt = PrebuiltKernels(folder, AVX2)
    assert prebuilt.paths() == []
    status = configure(prebuilt, tmp_path)
    assert not status.is_active
    assert f"no compiler: {NO_COMPILER}" in status.detail


def test_a_better_processor_has_its_kernels_compiled_where_possible(folder, tmp_path, library, caplog):
    prebuilt = PrebuiltKernels(folder, NEEDED_FLAGS["avx2-vnni"])
    status = configure(prebuilt, tmp_path)
    assert status.name == "prebuilt avx2"
    assert "more instructions than the prebuilt kernels (avx2)" in caplog.text
    shutil.copytree(library.path.parent, tmp_path / "cache")
    status = configure(prebuilt, tmp_path, compiler="g++")
    assert (status.is_prebuilt, status.detail) == (False, str(tmp_path / "cache" / library.path.name))


def test_a_library_that_the_system_cannot_load_is_compiled_instead(tmp_path, library, caplog):
    put(tmp_path / "prebuilt", f"avx2-{sources_digest()}", b"no library")
    shutil.copytree(library.path.parent, tmp_path / "cache")
    status = configure(PrebuiltKernels(tmp_path / "prebuilt", AVX2), tmp_path, compiler="g++")
    assert (status.is_active, status.is_prebuilt) == (True, False)
    assert "the prebuilt kernels cannot be loaded" in caplog.text

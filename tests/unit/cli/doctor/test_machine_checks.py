import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import rayinfer_kernels
from rayinfer_deployments.cli import build_application
from rayinfer_deployments.cli.doctor.machine_checks import (
    check_cache,
    check_compiler,
    check_default_model,
    check_engine_defaults,
    check_gpu,
    check_kernels,
    check_memory,
    check_open_files,
    check_package,
    check_packed_weights,
    check_python,
    check_ray_token,
    check_shared_memory,
)


def test_doctor_finds_this_machine_fit_to_serve():
    result = CliRunner().invoke(build_application(), ["doctor", "--json"])
    findings = {finding["name"]: finding for finding in json.loads(result.stdout)}
    assert result.exit_code == (1 if any(finding["verdict"] == "missing" for finding in findings.values()) else 0)
    assert {"Python", "torch", "ray", "transformers", "C++ compiler", "GPU", "memory", "cache"} <= set(findings)
    assert findings["torch"]["verdict"] == findings["ray"]["verdict"] == "ok"
    assert "threads" in findings["torch"]["found"]
    device = "GPU" if torch.cuda.is_available() else "CPU"
    assert findings["engine defaults"]["found"].startswith(f"of a {device}, ")
    assert all(finding["remedy"] for finding in findings.values() if finding["verdict"] != "ok")


def test_a_python_that_is_too_old_is_missing():
    assert check_python((3, 10)).verdict == "missing"
    assert check_python((3, 11)).verdict == "ok"


def test_a_package_that_is_not_installed_comes_with_the_command_that_installs_it():
    finding = check_package("no-such-package-of-anyone")
    assert finding.verdict == "missing"
    assert finding.remedy.endswith("-m pip install no-such-package-of-anyone")


def test_a_package_that_cannot_be_imported_is_missing_too():
    def fail():
        raise ImportError("libgomp.so.1: cannot open shared object file")

    finding = check_package("typer", fail)
    assert finding.verdict == "missing"
    assert "libgomp.so.1" in finding.found


def test_without_the_compiler_that_builds_the_kernels_there_is_advice():
    assert check_compiler(lambda name: None).verdict == "advice"
    assert check_compiler(lambda name: "/bin/true" if name == "clang++" else None).verdict == "advice"
    assert check_compiler(lambda name: "/bin/true" if name == "g++" else None).verdict == "ok"


def test_doctor_names_the_kernels_that_engines_choose_here(monkeypatch):
    monkeypatch.delenv("RAYINFER_KERNELS", raising=False)
    own, *others = rayinfer_kernels.runnable_kernel_paths()
    assert check_kernels().found.startswith(own)
    assert check_kernels().verdict == "ok"
    monkeypatch.setenv("RAYINFER_KERNELS", "portable")
    assert (check_kernels().verdict, check_kernels().found) == ("advice", f"portable, of {', '.join([own, *others])}")
    for wrong in {"sse9", *rayinfer_kernels.KERNEL_PATHS} - {"native", own, *others}:
        monkeypatch.setenv("RAYINFER_KERNELS", wrong)
        assert check_kernels().verdict == "missing"
        assert wrong in check_kernels().found


def test_without_a_gpu_all_is_well():
    assert check_gpu(lambda name: None).verdict == "ok"


def test_doctor_shows_the_settings_that_engines_have_here_by_default():
    assert [check_engine_defaults(device).found for device in ("cpu", "cuda")] == [
        "of a CPU, as torch finds no GPU: max_num_seqs 64, max_num_batched_tokens 512, 2 GiB of KV cache in blocks of"
        " 16 tokens, no async scheduling, no CUDA graphs",
        "of a GPU, as torch finds one: max_num_seqs 256, max_num_batched_tokens 8,192, memory_fraction 0.9 in blocks of"
        " 16 tokens, async scheduling, CUDA graphs for up to 256 requests",
    ]


def test_a_gpu_that_torch_cannot_use_is_worth_a_word(tmp_path):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'NVIDIA Imaginary, 1024 MiB'\n")
    program.chmod(0o755)
    finding = check_gpu(lambda name: str(program))
    assert finding.found.startswith("NVIDIA Imaginary, 1024 MiB")


@pytest.mark.parametrize(("free_gib", "verdict"), [(1.0, "missing"), (3.0, "advice"), (8.0, "ok")])
def test_memory_is_judged_by_what_a_service_takes(free_gib, verdict):
    assert check_memory(free_gib).verdict == verdict


@pytest.mark.parametrize(("limit", "verdict"), [(256, "advice"), (65536, "ok"), (-1, "ok")])
def test_open_files_are_judged_by_the_streams_they_allow(limit, verdict):
    assert check_open_files(limit).verdict == verdict


def test_a_machine_without_shared_memory_gets_advice(tmp_path):
    assert check_shared_memory(tmp_path / "shm").verdict == "advice"
    assert check_shared_memory(tmp_path).verdict == "ok"


def test_a_cache_that_does_not_exist_yet_is_judged_by_the_folder_above(tmp_path):
    assert check_cache(tmp_path / "new" / "cache").verdict == "ok"
    assert check_cache(Path("/proc/1/cache")).verdict == "missing"


def test_the_default_model_is_looked_for_in_the_cache(tmp_path):
    assert check_default_model(tmp_path).verdict == "advice"
    folder = tmp_path / "models" / "embedded" / "smollm2-135m-0123"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    finding = check_default_model(tmp_path)
    assert finding.verdict == "ok"
    assert "smollm2-135m-0123" in finding.found


def test_doctor_reports_the_size_of_packed_weights_and_how_to_delete_them(tmp_path):
    assert check_packed_weights(tmp_path).found.startswith("0 models, 0.0 of at most 20 GiB")
    for name, gib in (("one", 2), ("other", 19)):
        file = tmp_path / "packed" / name / "weights.safetensors"
        file.parent.mkdir(parents=True)
        with file.open("wb") as stream:
            stream.truncate(gib << 30)  # takes no room
        finding = check_packed_weights(tmp_path)
        assert finding.verdict == ("ok" if gib == 2 else "advice")
    assert finding.found == f"2 models, 21.0 of at most 20 GiB in {tmp_path / 'packed'}"
    assert finding.remedy.startswith("rayinfer cache clean")


def test_a_ray_token_that_others_can_read_comes_with_the_commands_that_hide_it(tmp_path):
    assert check_ray_token({}, tmp_path).verdict == "ok"  # there is none
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir(mode=0o755)
    token.write_text("secret")
    token.chmod(0o644)
    finding = check_ray_token({}, tmp_path)
    assert (finding.verdict, finding.remedy) == ("advice", f"chmod 700 {token.parent} && chmod 600 {token}")
    token.parent.chmod(0o700)
    token.chmod(0o600)
    assert check_ray_token({}, tmp_path).verdict == "ok"

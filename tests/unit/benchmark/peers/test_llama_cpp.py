import pytest

from rayinfer.benchmark.peers.llama_cpp import llama_cpp_contenders
from rayinfer.benchmark.peers.system_under_test import Missing
from rayinfer.errors import RayinferError
from support.fakes.fake_peers import make_program, make_setup

BENCH = """
    import json, sys
    prompt, generated = (int(sys.argv[sys.argv.index(name) + 1]) for name in ("-p", "-n"))
    print(json.dumps([{"avg_ts": 1000.0 + prompt + generated}]))
"""
FAILING_BENCH = """
    raise SystemExit("unknown architecture")
"""
VERSION = """
    import sys
    print("version: 7 (abc)\\nbuilt with cc", file=sys.stderr)
"""


@pytest.fixture
def install(tmp_path):
    """Put llama.cpp's programs and some files of the model where they are looked for."""

    def install_with(bench=BENCH, files=("bf16.gguf",)):
        make_program(tmp_path / "llama.cpp" / "llama-bench", bench)
        make_program(tmp_path / "llama.cpp" / "llama-server", VERSION)
        for name in files:
            file = tmp_path / "models" / "tiny" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        return make_setup(tmp_path)

    return install_with


def test_decoding_and_prefill_come_from_its_own_benchmark(install, tmp_path):
    contender, *missing = llama_cpp_contenders(install())
    with contender.open_engine(tmp_path / "log") as engine:
        assert engine.measure("stream") == {"stream": 1128.0}
        assert engine.measure("prefill") == {"prefill": 1512.0}
        assert engine.version == "7 (abc)"
        assert "batch" not in engine.works
    assert [one.label for one in missing] == ["llama.cpp q8_0", "llama.cpp q4_1"]


def test_every_file_that_is_there_is_a_contender(install):
    found = llama_cpp_contenders(install(files=("bf16.gguf", "q8_0.gguf", "q4_1.gguf")))
    assert [(one.mode, one.weight_bits) for one in found] == [("bfloat16", 16), ("q8_0", 8), ("q4_1", 4)]
    assert "-np" in found[0].server.arguments


def test_without_its_programs_it_is_named_as_missing(tmp_path):
    found = llama_cpp_contenders(make_setup(tmp_path))
    assert found[0] == Missing(label="llama.cpp bfloat16", reason="it is not installed")


def test_a_failure_of_the_benchmark_shows_what_it_said(install, tmp_path):
    contender = llama_cpp_contenders(install(bench=FAILING_BENCH))[0]
    with contender.open_engine(tmp_path / "log") as engine, pytest.raises(RayinferError, match="unknown architecture"):
        engine.measure("stream")

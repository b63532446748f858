from typer.testing import CliRunner

from rayinfer_deployments.cli import build_application
from support.tiny_models.tiny_adapters import make_adapter
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def run(*arguments):
    return CliRunner().invoke(build_application(), ["merge", *map(str, arguments)])


def test_a_merge_says_what_it_has_written(tmp_path):
    base = make_tiny_llama(tmp_path / "base")
    adapter, output = make_adapter(tmp_path / "adapter", base, rank=3), tmp_path / "merged"
    written = run(base, adapter, output)
    assert written.exit_code == 0, written.output
    assert written.stdout.startswith(f"{output}: 14 tensors changed by rank 3 at most")
    again = run(base, adapter, output)
    assert again.exit_code == 1
    assert again.stderr == f"error: the output {output} exists: --overwrite replaces it\n"
    assert run(base, adapter, output, "--overwrite").exit_code == 0


def test_a_gguf_file_is_refused_as_a_base(tmp_path):
    refused = run(tmp_path / "model.gguf", tmp_path, tmp_path / "merged")
    assert refused.exit_code == 1
    assert "is quantized (GGUF)" in refused.stderr

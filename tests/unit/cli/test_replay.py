from typer.testing import CliRunner

from rayinfer.llm import LLM
from rayinfer.sampling_params import SamplingParams
from rayinfer_deployments.cli import build_application
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def run(*arguments):
    return CliRunner().invoke(build_application(), ["replay", *map(str, arguments)])


def test_a_recording_is_repeated_and_its_first_difference_shown(tmp_path):
    model, other = make_tiny_llama(tmp_path / "tiny"), make_tiny_llama(tmp_path / "other", seed=5)
    with LLM(str(model), record_schedule=str(tmp_path / "recordings"), num_kv_blocks=40, num_threads=1) as llm:
        llm.generate("Once upon a time", SamplingParams(max_tokens=6, ignore_eos=True), use_tqdm=False)
    (recording,) = (tmp_path / "recordings").iterdir()
    same = run(recording)
    assert same.exit_code == 0, same.output
    assert "6 steps and 6 tokens repeated\nno difference" in same.output
    differs = run(recording, "--model", other)
    assert differs.exit_code == 1
    for part in ("first difference at step 1: a token differs", "recorded  ", "repeated  "):
        assert part in differs.output


def test_a_missing_file_is_an_error(tmp_path):
    missing = run(tmp_path / "nothing")
    assert (missing.exit_code, "there is no file" in missing.output) == (1, True)

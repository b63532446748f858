import json

from typer.testing import CliRunner

from rayinfer_deployments.cli import build_application
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_vision import make_tiny_vision_model

RUNNER = CliRunner()
LOAD = ["--rate", "20", "--input-len", "64", "--output-len", "32"]


def run(*arguments: str):
    return RUNNER.invoke(build_application(), ["plan", *arguments])


def test_plan_prints_tables_with_a_basis_for_each_figure():
    done = run("--model", "Qwen3-8B", "--gpu", "H100", "--ttft", "1", "--itl", "0.05", *LOAD)
    assert done.exit_code == 0, done.output
    assert "| weights                   | 15.26 GiB | counted" in done.output
    assert "estimated: queueing" in done.output
    assert "measured on an H100" in done.output


def test_plan_prints_json_for_scripts():
    arguments = [
        "--model",
        "Qwen3-0.6B",
        "--gpu",
        "X9",
        "--memory-gb",
        "24",
        "--bandwidth-gb-s",
        "600",
        "--tflops",
        "80",
    ]
    found = json.loads(run(*arguments, *LOAD, "--json").output)
    assert found["num_engines"] == 1
    assert found["hardware"]["read_bytes_per_s"] == 600e9
    assert found["planned"]["requests_per_s"] == 20


def test_plan_refuses_unknown_names_with_those_that_are_known():
    done = run("--model", "Qwen3-0.6B", "--gpu", "H100", "--quantization", "int3", *LOAD)
    assert done.exit_code == 1
    assert "quantization must be one of int8, int8-dynamic, fp8, int4, got 'int3'" in done.output


def test_plan_takes_this_machine_where_no_card_is_named(tmp_path, kernel_folder, monkeypatch):
    monkeypatch.setenv("RAYINFER_CACHE", str(kernel_folder.parent))
    done = run(str(make_tiny_llama(tmp_path / "tiny")), "--threads", "1", "--input-len", "64", "--output-len", "32")
    assert done.exit_code == 0, done.output
    assert "| cpu (1 threads," in done.output
    assert "1 requests/s of 64 + 32 tokens" in done.output


def test_plan_counts_images_of_prompts(tmp_path):
    card = ["--gpu", "X9", "--memory-gb", "4", "--bandwidth-gb-s", "600", "--tflops", "80"]
    lengths = ["--input-len", "100", "--output-len", "32", "--images", "2", "--image-size", "60x40"]
    folder = str(make_tiny_vision_model(tmp_path))
    found = json.loads(run(folder, *card, *lengths, "--json").output)
    assert found["objectives"]["prompt_len"] == 100 + 2 * 7 * 9  # of seven tiles each
    assert "tokens of an image, 60 x 40 pixels" in run(folder, *card, *lengths).output
    wrong = run(folder, *card, *lengths[:-1], "big")
    assert (wrong.exit_code, "WIDTHxHEIGHT" in wrong.output) == (1, True)
    texts = run("Qwen3-0.6B", "--gpu", "H100", "--images", "2")
    assert (texts.exit_code, "Qwen3-0.6B reads no images" in texts.output) == (1, True)


def test_plan_refuses_two_models():
    done = run("Qwen3-8B", "--model", "Qwen3-0.6B", "--gpu", "H100")
    assert done.exit_code == 1
    assert "give one model: MODEL is 'Qwen3-8B', --model 'Qwen3-0.6B'" in done.output


def test_plan_compares_its_times_with_an_engine_here(tmp_path, kernel_folder, monkeypatch):
    monkeypatch.setenv("RAYINFER_CACHE", str(kernel_folder.parent))
    folder = make_tiny_llama(tmp_path / "tiny")
    done = run("--model", str(folder), "--gpu", "cpu", "--threads", "1", *LOAD, "--compare", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["hardware"]["basis"] == "measured here, now"
    names = [each["name"] for each in found["compared"]]
    assert names == ["prefill of 64 tokens", "decoding step of 1", "decoding step of 8", "decoding step of 32"]
    assert all(each["measured_s"] > 0 for each in found["compared"])


def test_plan_refuses_options_of_other_devices():
    done = run("Qwen3-8B", "--tensor-parallel-size", "2")
    assert done.exit_code == 1
    assert "--tensor-parallel-size 2 does not apply to a processor" in done.output
    done = run("Qwen3-8B", "--gpu", "H100", "--threads", "4")
    assert done.exit_code == 1
    assert "--threads 4 does not apply to a card" in done.output


def test_plan_refuses_numbers_without_end():
    for option in ("--rate", "--ttft", "--itl", "--memory-gb", "--bandwidth-gb-s", "--tflops"):
        done = run("Qwen3-8B", "--gpu", "H100", option, "inf")
        assert done.exit_code == 2, option
        assert "less than or equal" in done.output

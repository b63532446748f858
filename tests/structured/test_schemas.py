"""Answers of the embedded model at a high temperature, held against the schemas that they were asked for."""

import json
import platform
from collections import Counter
from pathlib import Path

import pytest

from rayinfer import LLM, SamplingParams
from rayinfer.errors import InvalidParameter
from rayinfer.grammars.grammar_checks import GrammarChecks
from rayinfer.grammars.spec import StructuredOutputsParams
from support.structured.json_formats import schema_errors
from support.tiny_models.tiny_checkpoints import make_tiny_llama

FOLDER = Path(__file__).parent
MODEL = "smollm2-135m"
NUM_ANSWERS, MAX_TOKENS = 10, 96  # to each schema, and of each answer
TABLE_BEGINS = "<!-- table -->\n"


def schemas_of(name):
    return [json.loads(line) for line in (FOLDER / name).read_text().splitlines()]


SCHEMAS, REFUSED = schemas_of("schemas.jsonl"), schemas_of("refused_schemas.jsonl")


@pytest.mark.structured
def test_answers_of_the_embedded_model_validate_or_end_by_length(results_file):
    with LLM(MODEL, max_num_seqs=32, num_kv_blocks=1200) as llm:
        counts = count_ends(llm, NUM_ANSWERS, MAX_TOKENS)
    if results_file is not None:
        write_results(results_file, counts)
    assert sum(counts, Counter())["stop"] > len(SCHEMAS) * NUM_ANSWERS // 3


@pytest.mark.structured
def test_answers_of_the_embedded_model_are_the_same_under_150_preemptions():
    prompts, params = requests_of(4, 64)  # about one preemption each
    with LLM(MODEL, max_num_seqs=16, num_kv_blocks=512) as llm:
        expected = [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(MODEL, max_num_seqs=16, num_kv_blocks=24) as llm:
        assert [output.outputs[0].text for output in llm.generate(prompts, params, use_tqdm=False)] == expected
        assert llm.stats.num_preemptions_total >= 150


def test_answers_of_a_random_model_validate_or_end_by_length(tmp_path):
    folder = str(make_tiny_llama(tmp_path / "tiny", tie=False))
    with LLM(folder, dtype="float32", max_num_seqs=64, num_kv_blocks=2048, num_threads=1) as llm:
        counts = count_ends(llm, 2, 200)
    assert sum(counts, Counter())["stop"] > len(SCHEMAS) // 2


def requests_of(num_answers, max_tokens):
    """Return the prompts and parameters of so many answers to each schema, half of them compact."""
    prompts, params = [], []
    for case in SCHEMAS:
        prompts += [f"Answer with {case['name']} as JSON:\n"] * num_answers
        for seed in range(num_answers):
            form = {"json": case["schema"], "disable_any_whitespace": seed % 2 == 0}
            params.append(SamplingParams(temperature=1.2, seed=seed, max_tokens=max_tokens, structured_outputs=form))
    return prompts, params


def count_ends(llm, num_answers, max_tokens):
    """Check the answers to all schemas; returns how those to each have ended."""
    prompts, params = requests_of(num_answers, max_tokens)
    answers = [output.outputs[0] for output in llm.generate(prompts, params, use_tqdm=False)]
    problems, counts = [], []
    for index, case in enumerate(SCHEMAS):
        ends = Counter()
        for answer in answers[index * num_answers : (index + 1) * num_answers]:
            ends[answer.finish_reason] += 1
            if answer.finish_reason == "stop":
                problems += [(case["name"], answer.text, error) for error in schema_errors(case["schema"], answer.text)]
            elif answer.finish_reason != "length":
                problems.append((case["name"], answer.text, answer.finish_reason))
        counts.append(ends)
    assert not problems
    return counts


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["says"])
def test_what_cannot_be_expressed_is_refused_by_name(case):
    with pytest.raises(InvalidParameter) as refusal:
        GrammarChecks().check(StructuredOutputsParams(json=case["schema"]))
    assert case["says"] in refusal.value.message


def test_all_schemas_are_accepted():
    checks = GrammarChecks()
    for case in SCHEMAS:
        checks.check(StructuredOutputsParams(json=case["schema"]))


def write_results(path, counts):
    rows = ["| schema | source | valid | ended by length |", "|---|---|---|---|"]
    for case, ends in zip(SCHEMAS, counts, strict=True):
        rows.append(f"| {case['name']} | {case['source']} | {ends['stop']} | {ends['length']} |")
    total = sum(counts, Counter())
    rows.append(f"| **all** | | **{total['stop']}** | **{total['length']}** |")
    machine = f"{MODEL}, temperature 1.2, at most {MAX_TOKENS} tokens, Python {platform.python_version()}"
    before = path.read_text().partition(TABLE_BEGINS)[0]
    path.write_text(f"{before}{TABLE_BEGINS}\n" + "\n".join(rows) + f"\n\n{machine}.\n")

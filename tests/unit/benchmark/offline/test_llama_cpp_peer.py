from dataclasses import replace

import pytest

from rayinfer.benchmark.offline.llama_cpp_peer import MODES, LlamaCppPeer, check_peer_name, lookup_run, server_run
from rayinfer.benchmark.offline.speculation import run_speculation_benchmark
from rayinfer.benchmark.offline.speculation_report import OFF
from rayinfer.benchmark.offline.speculation_runs import Work
from rayinfer.benchmark.offline.speculation_tasks import KINDS
from rayinfer.errors import ConfigError, RayinferError
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_llama_cpp import make_llama_cpp
from support.fakes.fake_peers import make_program, make_setup
from support.tiny_models.tiny_checkpoints import make_tiny_llama

LOOKUP_OUTPUT = """
<|im_start|>user
decoded 12 of the messages<|im_end|>

encoded   92 tokens in    0.345 seconds, speed:  266.667 t/s
decoded   97 tokens in    0.480 seconds, speed:  202.083 t/s

n_draft      = 3
n_predict    = 97
n_drafted    = 60
t_draft_flat = 0.05 ms
t_draft      = 0.65 ms, 10.83 us per token, 92307.69 tokens per second
n_accept     = 45
accept       = 75.000%
"""


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny")


def make_work(model_folder, num_streams=1, num_tokens=9):
    tokenizer = Tokenizer.from_folder(model_folder)
    prompts = [tokenizer.encode(f"prompt {number}", add_special_tokens=False) for number in range(num_streams)]
    return Work(prompts=prompts, num_tokens=num_tokens)


def open_peer(model_folder, folder, **programs):
    make_llama_cpp(folder, model_folder, **programs)
    setup = replace(make_setup(folder), model=str(model_folder), model_folder=model_folder)
    return LlamaCppPeer(setup, Tokenizer.from_folder(model_folder), folder)


def test_rates_are_of_the_steps_behind_the_first_token():
    work = Work(prompts=[[1] * 92], num_tokens=96)
    run = lookup_run(LOOKUP_OUTPUT, work)
    assert run.tok_s == pytest.approx(96 / 0.48)
    assert (run.num_tokens, run.num_drafts, run.num_accepted, run.answers) == (97, 60, 45, None)
    timings = {"predicted_n": 11, "predicted_ms": 100.0}
    reply = {"tokens": [5] * 11, "tokens_evaluated": 92, "timings": timings}
    slower = reply | {"timings": timings | {"predicted_ms": 200.0, "draft_n": 6, "draft_n_accepted": 2}}
    run = server_run([reply, slower], Work(prompts=[[1] * 92] * 2, num_tokens=96))
    assert run.tok_s == pytest.approx(20 / 0.2)
    assert (run.num_tokens, run.num_drafts, run.num_accepted) == (22, 6, 2)


def test_prompts_of_other_lengths_and_output_without_figures_are_errors():
    work = Work(prompts=[[1] * 92], num_tokens=96)
    with pytest.raises(RayinferError, match="llama-lookup read 92 tokens in a prompt of 91"):
        lookup_run(LOOKUP_OUTPUT, Work(prompts=[[1] * 91], num_tokens=96))
    with pytest.raises(RayinferError, match="printed nothing like"):
        lookup_run("encoded   92 tokens", work)
    reply = {"tokens": [5], "tokens_evaluated": 92, "timings": {"predicted_n": 1, "predicted_ms": 0.001}}
    with pytest.raises(RayinferError, match="after one token"):
        server_run([reply], work)


def test_each_mode_runs_its_program_on_the_same_tokens(model_folder, tmp_path):
    peer = open_peer(model_folder, tmp_path)
    work = make_work(model_folder)
    rates = {name: peer.answer(mode, work).tok_s for name, mode in MODES.items()}
    assert rates[OFF] == pytest.approx(100)
    assert {round(rate) for name, rate in rates.items() if name.startswith("lookup")} == {500}
    assert {round(rate) for name, rate in rates.items() if name.startswith("ngram")} == {200}
    several = peer.answer(MODES["ngram-mod"], make_work(model_folder, num_streams=3))
    assert several.tok_s == pytest.approx(24 / 0.042)
    assert [len(answer) for answer in several.answers] == [9] * 3
    assert (several.num_drafts, several.num_accepted) == (24, 18)
    assert peer.version() == "7 (abc)"
    commands = peer.commands()
    assert commands["lookup 8"] == "llama-lookup --spec-draft-n-max 8"
    assert commands["ngram-mod short"].endswith("ngram-mod --spec-ngram-mod-n-match 16 --spec-ngram-mod-n-min 4")


def test_failures_name_the_reason(model_folder, tmp_path):
    peer = open_peer(model_folder, tmp_path, extra_tokens=1, lookup_fails=True)
    work = make_work(model_folder)
    with pytest.raises(RayinferError, match=f"llama-server read {len(work.prompts[0]) + 1} tokens"):
        peer.answer(MODES[OFF], work)
    with pytest.raises(RayinferError, match="llama-lookup failed: out of memory"):
        peer.answer(MODES["lookup 3"], work)


def test_missing_programs_and_models_are_named(model_folder, tmp_path):
    setup, tokenizer = make_setup(tmp_path), Tokenizer.from_folder(model_folder)
    make_program(tmp_path / "llama.cpp" / "llama-server", "")
    with pytest.raises(ConfigError, match=r'lacks llama-lookup in .*: see "Installing peers"'):
        LlamaCppPeer(setup, tokenizer, tmp_path)
    make_program(tmp_path / "llama.cpp" / "llama-lookup", "")
    with pytest.raises(ConfigError, match=r"tiny/bf16\.gguf"):
        LlamaCppPeer(setup, tokenizer, tmp_path)
    with pytest.raises(ConfigError, match=r"peer must be llama\.cpp, got 'vllm'"):
        check_peer_name("vllm")


def test_a_peer_is_measured_in_the_same_rounds(model_folder, tmp_path):
    make_llama_cpp(tmp_path, model_folder)
    report = run_speculation_benchmark(
        str(model_folder),
        {"num_kv_blocks": 256, "dtype": "float32", "num_threads": 1},
        [1, 2],
        speculation=4,
        num_tokens=8,
        num_rounds=1,
        temperature=0.0,
        command="command",
        log=lambda text: None,
        peer_setup=replace(make_setup(tmp_path), model=str(model_folder), model_folder=model_folder),
    )
    assert report.peer is not None
    modes = [(each.kind, each.num_streams, each.mode) for each in report.peer.results]
    assert modes == [
        (kind, number, name) for number in (1, 2) for kind in KINDS for name in MODES if MODES[name].has_streams(number)
    ]
    by_mode = {each.mode: each for each in report.peer.results[: len(MODES)]}
    assert (by_mode[OFF].gain, by_mode["ngram-mod"].gain, by_mode["ngram-mod"].accepted) == (1, 2, 0.75)
    assert by_mode["lookup 3"].same is None
    assert 0 <= by_mode[OFF].same <= 1
    own, best, all_modes, commands = report.tables()
    assert [row[3] for row in best.rows] == ["lookup 3"] * 3 + ["ngram-cache"] * 3
    assert (len(own.rows), len(all_modes.rows), len(commands.rows)) == (6, len(modes), len(MODES))
    own_tok_s, off = report.results[0].tok_s, by_mode[OFF]
    assert by_mode["ngram-mod"].ratio == pytest.approx(own_tok_s / 200, rel=0.5)
    assert off.ratio == pytest.approx(report.results[0].off_tok_s / 100, rel=0.5)


def test_a_peer_answers_greedily_only(model_folder, tmp_path):
    with pytest.raises(ConfigError, match=r"temperature must be 0, got 0\.7"):
        run_speculation_benchmark(
            str(model_folder),
            {},
            [1],
            speculation=4,
            num_tokens=8,
            num_rounds=1,
            temperature=0.7,
            command="command",
            log=lambda text: None,
            peer_setup=make_setup(tmp_path),
        )

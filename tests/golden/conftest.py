"""Every golden request, answered by transformers and by our engine in each case, once for the whole session."""

import contextlib
import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rayinfer import LLM, SamplingParams
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.outputs import EngineStats, RequestOutput
from rayinfer.tokenization.tokenizer import Tokenizer
from support.golden.golden_comparison import Difference, GoldenRequest, OwnModel
from support.golden.golden_prompts import GOLDEN_PROMPTS
from support.golden.golden_reference import Reference, greedy_references, one_thread

MODEL = "smollm2-135m"
NUM_TOKENS = 16  # several steps behind the prompt, in each way; more costs minutes
# Enough for every request at once; each needs less than what remains of it in a step.
ROOMY = {"num_kv_blocks": 800, "max_num_seqs": 128}
CASES = ("alone", "in_one_batch", "already_cached", "arriving_at_random_times", "preempted", "in_chunks_of_16_tokens")
EXCUSED = pytest.StashKey[list[str]]()

# Taken in turn by the sampled requests; 0.8 is their temperature and each has a seed of its own.
SAMPLING_SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"top_p": 0.9},
    {"top_k": 40},
    {"top_k": 200, "top_p": 0.95},
    {"repetition_penalty": 1.2},
    {"presence_penalty": 0.6, "frequency_penalty": 0.4},
    {"top_p": 0.7, "top_k": 20, "repetition_penalty": 1.1},
    {"min_p": 0.05, "frequency_penalty": 0.8},
)


class CaseRun(NamedTuple):
    """Our engine's outputs of a case, by the request's name, and its counters afterwards."""

    case: str
    outputs: dict[str, RequestOutput]
    stats: EngineStats

    def token_ids(self, request: GoldenRequest) -> list[int]:
        return self.outputs[request.name].outputs[0].token_ids

    def answered(self, requests: list[GoldenRequest]) -> list[GoldenRequest]:
        return [request for request in requests if request.name in self.outputs]


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return resolve_model(MODEL)


@pytest.fixture(scope="session")
def greedy_requests(model_folder: Path) -> list[GoldenRequest]:
    tokenizer = Tokenizer.from_folder(model_folder)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    return [GoldenRequest(prompt.name, tokenizer.encode(prompt.text), params) for prompt in GOLDEN_PROMPTS]


@pytest.fixture(scope="session")
def sampled_requests(greedy_requests: list[GoldenRequest]) -> list[GoldenRequest]:
    """Two of every five prompts, so that code and other languages are among them."""
    prompts = [request for index, request in enumerate(greedy_requests) if index % 5 in (1, 3)]
    return [
        GoldenRequest(
            f"{prompt.name}, sampled",
            prompt.prompt_token_ids,
            SamplingParams(temperature=0.8, seed=seed, max_tokens=NUM_TOKENS, ignore_eos=True, **settings),
        )
        for seed, (prompt, settings) in enumerate(zip(prompts, itertools.cycle(SAMPLING_SETTINGS), strict=False))
    ]


@pytest.fixture(scope="session")
def all_requests(greedy_requests: list[GoldenRequest], sampled_requests: list[GoldenRequest]) -> list[GoldenRequest]:
    return greedy_requests + sampled_requests


@pytest.fixture(scope="session")
def case_requests(request: pytest.FixtureRequest, all_requests: list[GoldenRequest]) -> list[GoldenRequest]:
    """Of those that have run in one batch, every third one runs in each other case."""
    return all_requests if request.config.getoption("--every-case") else all_requests[::3]


@pytest.fixture(scope="session")
def transformers_model(model_folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)


@pytest.fixture(scope="session")
def references(
    transformers_model: PreTrainedModel, greedy_requests: list[GoldenRequest], in_one_batch: CaseRun
) -> dict[str, Reference]:
    """The golden tokens by the request's name."""
    answers = {request.name: in_one_batch.token_ids(request) for request in greedy_requests}
    return greedy_references(transformers_model, greedy_requests, answers)


@pytest.fixture(scope="session")
def own_model(model_folder: Path) -> OwnModel:
    return OwnModel(model_folder)


@pytest.fixture(scope="session")
def alone(case_requests: list[GoldenRequest]) -> CaseRun:
    """One request after the other, none of which finds anything in a cache."""
    with _engine(num_kv_blocks=40, enable_prefix_caching=False) as llm:
        outputs = {}
        for request in case_requests:
            outputs |= _answer(llm, [request])
        return CaseRun("alone", outputs, llm.stats)


@pytest.fixture(scope="session")
def batched_twice(all_requests: list[GoldenRequest], case_requests: list[GoldenRequest]) -> list[CaseRun]:
    """All prompts in one step, and some once more when the cache holds them."""
    with _engine(max_num_batched_tokens=8192, **ROOMY) as llm:
        cases = {"in_one_batch": all_requests, "already_cached": case_requests}
        return [CaseRun(case, _answer(llm, requests), llm.stats) for case, requests in cases.items()]


@pytest.fixture(scope="session")
def in_one_batch(batched_twice: list[CaseRun]) -> CaseRun:
    return batched_twice[0]


@pytest.fixture(scope="session")
def already_cached(batched_twice: list[CaseRun]) -> CaseRun:
    return batched_twice[1]


@pytest.fixture(scope="session")
def arriving_at_random_times(case_requests: list[GoldenRequest]) -> CaseRun:
    """Up to two new requests before each step, in an order of their own."""
    chance = random.Random(20)
    coming = chance.sample(case_requests, len(case_requests))
    outputs: dict[str, RequestOutput] = {}
    with _engine(**ROOMY) as llm:
        while coming or llm.has_unfinished_requests():
            for _ in range(min(chance.choice((0, 0, 1, 2)), len(coming))):
                request = coming.pop()
                llm.add_request(request.prompt_token_ids, request.sampling_params, request_id=request.name)
            outputs |= {output.request_id: output for output in llm.step() if output.finished}
        return CaseRun("arriving_at_random_times", outputs, llm.stats)


@pytest.fixture(scope="session")
def preempted(case_requests: list[GoldenRequest]) -> CaseRun:
    """A pool that holds a few requests, so that some must give way to others."""
    with _engine(num_kv_blocks=72) as llm:
        return CaseRun("preempted", _answer(llm, case_requests), llm.stats)


@pytest.fixture(scope="session")
def in_chunks_of_16_tokens(case_requests: list[GoldenRequest]) -> CaseRun:
    """No step computes more than 16 tokens, and no prompt finds anything in a cache."""
    with _engine(max_num_batched_tokens=16, enable_prefix_caching=False, **ROOMY) as llm:
        return CaseRun("in_chunks_of_16_tokens", _answer(llm, case_requests), llm.stats)


@pytest.fixture(params=CASES)
def run(request: pytest.FixtureRequest) -> CaseRun:
    """Each case in turn."""
    case_run: CaseRun = request.getfixturevalue(request.param)
    return case_run


@pytest.fixture(name="one_thread")
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def unexcused(request: pytest.FixtureRequest) -> Callable[[list[Difference | None]], str]:
    """Sort differences: the excused are listed at the end of the session, the others are returned."""
    excused = request.config.stash.setdefault(EXCUSED, [])

    def sort(differences: list[Difference | None]) -> str:
        found = [difference for difference in differences if difference is not None]
        excused.extend(f"{request.node.name}: {difference}" for difference in found if difference.is_excused)
        return "\n".join(str(difference) for difference in found if not difference.is_excused)

    return sort


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the differences that no comparison counted."""
    excused = config.stash.get(EXCUSED, [])
    if excused:
        terminalreporter.section("golden: differences at near ties, listed and not counted")
    for line in excused:
        terminalreporter.write_line(line)


@contextlib.contextmanager
def _engine(**settings: Any) -> Iterator[LLM]:
    with one_thread(), LLM(MODEL, dtype="float32", num_threads=1, **settings) as llm:
        yield llm


def _answer(llm: LLM, requests: list[GoldenRequest]) -> dict[str, RequestOutput]:
    outputs = llm.generate(
        [request.prompt_token_ids for request in requests],
        [request.sampling_params for request in requests],
        use_tqdm=False,
    )
    return {request.name: output for request, output in zip(requests, outputs, strict=True)}

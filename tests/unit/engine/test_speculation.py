"""Speculation on real engines of tiny models: where drafts come from, and that they change no answer."""

import time
from types import SimpleNamespace

import pytest
import torch
from transformers import GPT2Config

from rayinfer.config import engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.engine.worker.worker import build_worker
from rayinfer.errors import ConfigError, ModelLoadError, ModelNotFound
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.protocols import GenerationRequest, Sleep, Wake
from rayinfer.sampling_params import SamplingParams
from rayinfer.tensor_parallel import RankCoordinates, Shard
from support.fakes.thread_ranks import Table, run_threads
from support.tiny_models.tiny_checkpoints import make_tiny_llama, make_tiny_model, save_tokenizer
from support.tiny_models.tiny_eagle3 import TINY, PlainHead, make_tiny_eagle3

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
TIGHT, OVERLAPPED = {"num_kv_blocks": 9, "max_num_batched_tokens": 16}, {"async_scheduling": True}
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    """A smaller model of the same tokenizer."""
    return make_tiny_llama(tmp_path_factory.mktemp("other"), hidden=32, layers=1, heads=2, kv_heads=1, seed=3)


def new_engine(folder, recorder=None, **settings):
    sizes = {"num_kv_blocks": 64, "block_size": 8, "dtype": "float32", "num_threads": 1}
    return build_engine(engine_config(model=str(folder), **sizes | settings), folder, recorder=recorder)


def answers(engine, *params, tenant=""):
    """Answer one prompt for each of the parameters, all at once."""
    for number, each in enumerate(params):
        prompt = [9, 8, 7, 200, 6, 5, 31 + number]
        engine.add_request(
            GenerationRequest(request_id=str(number), prompt_token_ids=prompt, sampling_params=each, tenant=tenant)
        )
    tokens = {str(number): [] for number in range(len(params))}
    while engine.has_unfinished_requests:
        for delta in engine.step():
            tokens[delta.request_id] += delta.token_ids
    return list(tokens.values())


@pytest.mark.parametrize(("memory", "is_kept"), [({}, True), ({"recent_answers_bytes": 0}, False)])
def test_a_question_that_is_asked_again_is_answered_by_drafts_of_the_first_answer(folder, memory, is_kept):
    expected = answers(new_engine(folder), GREEDY, SEEDED)
    engine = new_engine(folder, speculation=7, **memory)
    assert answers(engine, GREEDY, SEEDED) == expected
    before = engine.stats.accepted_draft_tokens_total
    assert answers(engine, GREEDY, SEEDED, tenant="another") == expected
    others = engine.stats.accepted_draft_tokens_total - before
    assert answers(engine, GREEDY, SEEDED, tenant="another") == expected
    again = engine.stats.accepted_draft_tokens_total - before - others
    assert others == before
    assert (again >= before + 20) == is_kept


@pytest.mark.parametrize(
    ("settings", "said", "drafts"),
    [
        ({}, "", False),
        ({"speculation": "auto"}, "speculation auto of repeated text", True),
        ({"async_scheduling": True}, "", False),
        ({"async_scheduling": True, "speculation": 3}, "speculation 3 of repeated text", True),
        ({"pipeline_parallel_size": 2, "speculation": 3}, "speculation 3 of repeated text", True),
        (
            {"engine": "static", "num_kv_blocks": None, "max_model_len": 64, "max_num_seqs": 2, "speculation": "auto"},
            "no speculation (steps of a fixed batch)",
            False,
        ),
    ],
    ids=str,
)
def test_an_engine_says_whether_it_speculates(settings, said, drafts, folder):
    engine = new_engine(folder, **settings)
    assert engine.description.speculation == said
    assert said in engine.description.capacity
    expected = answers(new_engine(folder), GREEDY)
    assert [answers(engine, GREEDY) for _ in range(2)] == [expected] * 2
    assert (engine.stats.accepted_draft_tokens_total > 0) == drafts
    engine.exit()


@pytest.mark.parametrize(
    ("settings", "num_steps"),
    [
        ({}, 1 + 5),  # the prompts, and up to five tokens a step
        ({"async_scheduling": True}, 1 + 5),
        ({"tensor_parallel_size": 2}, 1 + 5),
        ({"pipeline_parallel_size": 2}, 1 + 2 * 5),  # in two micro-batches
    ],
    ids=str,
)
def test_a_draft_model_that_is_the_model_is_always_right(settings, num_steps, folder):
    greedy = [GREEDY] * 5
    engine = new_engine(folder, draft_model=str(folder), speculation=4, **settings)
    assert answers(engine, *greedy) == answers(new_engine(folder), *greedy)
    stats = engine.stats
    assert stats.accepted_draft_tokens_total == stats.draft_tokens_total > 5 * 24 * 0.7
    assert stats.num_steps_total == num_steps
    engine.exit()


@pytest.mark.parametrize(
    ("limits", "loop"),
    [({}, {}), (TIGHT, {}), ({}, OVERLAPPED), (TIGHT, OVERLAPPED), (TIGHT, {"pipeline_parallel_size": 2})],
    ids=str,
)
def test_another_draft_model_changes_no_answer(limits, loop, folder, other):
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    expected = answers(new_engine(folder), *params)
    engine = new_engine(folder, draft_model=str(other), speculation="auto", **limits, **loop)
    assert answers(engine, *params) == expected
    stats = engine.stats
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total
    if limits:
        assert stats.num_preemptions_total > 0
    engine.exit()


@pytest.mark.parametrize(("level", "ranks"), [(0, 1), (1, 1), (2, 1), (2, 2)])
def test_a_draft_model_sleeps_and_wakes_with_the_engine(level, ranks, folder):
    engine = new_engine(folder, draft_model=str(folder), speculation=3, tensor_parallel_size=ranks)
    expected = answers(engine, GREEDY)
    before = engine.stats.draft_tokens_total
    engine.control(Sleep(level))
    engine.control(Wake())
    assert answers(engine, GREEDY) == expected
    stats = engine.stats
    assert stats.accepted_draft_tokens_total == stats.draft_tokens_total == 2 * before
    engine.exit()


def test_the_blocks_of_a_draft_model_are_counted(folder, other):
    def num_blocks(**settings):
        engine = new_engine(folder, num_kv_blocks=None, kv_cache_memory_bytes=1 << 20, **settings)
        engine.exit()
        return engine.stats.kv_blocks_total

    alone, twice = num_blocks(), num_blocks(draft_model=str(folder))
    assert twice == alone // 2
    assert num_blocks(draft_model=str(folder), tensor_parallel_size=2) == twice
    assert twice < num_blocks(draft_model=str(other)) < alone


def test_rank_0_alone_has_the_draft_model(folder, other):
    sizes = {"kv_cache_memory_bytes": 1 << 20, "block_size": 8, "dtype": "float32", "num_threads": 1}
    config = engine_config(model=str(folder), draft_model=str(other), tensor_parallel_size=2, **sizes)
    values = Table(2)

    def build(group):
        coordinates = RankCoordinates(group.rank, 2, 1)
        ranks = SimpleNamespace(coordinates=coordinates, device=torch.device("cpu"), world=None)
        ranks.shard = Shard(coordinates, group)
        ranks.reduce_min = lambda own: list(map(min, *values.exchange(group.rank, own)))
        worker = build_worker(config, folder, ranks)
        worker.executor.shutdown()
        return worker

    first, second = run_threads(2, build)
    assert (first.draft is None, second.draft is None) == (False, True)
    assert first.num_blocks == second.num_blocks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "static", "num_kv_blocks": None}, "draft_model needs engine 'dynamic'"),
    ],
    ids=str,
)
def test_engines_that_cannot_have_a_draft_model_say_so(settings, message, folder, other):
    with pytest.raises(ConfigError, match=message):
        new_engine(folder, draft_model=str(other), **settings)


def test_a_draft_model_needs_the_same_tokenizer(folder, tmp_path):
    another = make_tiny_llama(tmp_path / "another", tie=False)
    save_tokenizer(another, 300)
    with pytest.raises(ConfigError, match="has another tokenizer than the model: 84 tokens differ"):
        new_engine(folder, draft_model=str(another))
    (another / "tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match=r"another.tokenizer.json is missing"):
        new_engine(folder, draft_model=str(another))
    with pytest.raises(ModelNotFound, match="there is no model"):
        new_engine(folder, draft_model=str(tmp_path / "nothing"))


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("deep"), tie=False, layers=8)


@pytest.fixture(scope="module")
def head(tmp_path_factory):
    return make_tiny_eagle3(tmp_path_factory.mktemp("head"), TINY._replace(draft_vocab=300))


class Recorded:
    """A recorder of what another drafter proposes."""

    def __init__(self, drafter):
        self._drafter = drafter
        self.proposed = []

    def propose(self, rows):
        drafts = self._drafter.propose(rows)
        self.proposed += [
            (each.token_ids.tolist(), each.limit, list(draft)) for each, draft in zip(rows, drafts, strict=True)
        ]
        return drafts


@pytest.mark.parametrize("loop", [{}, OVERLAPPED], ids=["waiting", "overlapped"])
@pytest.mark.parametrize("limits", [{}, TIGHT], ids=["roomy", "tight"])
def test_drafts_of_a_head_change_no_answer(limits, loop, deep, head):
    params = [GREEDY, SEEDED, GREEDY, SEEDED]
    expected = answers(new_engine(deep), *params)
    engine = new_engine(deep, draft_model=str(head), speculation=4, **limits, **loop)
    assert answers(engine, *params) == expected
    stats = engine.stats
    assert stats.draft_tokens_total > stats.accepted_draft_tokens_total
    assert stats.draft_tokens_total > (4 if loop else 50)  # rows without accepted drafts overlap
    if limits:
        assert stats.num_preemptions_total > 0


class PlannedTokens:
    """A recorder of the tokens of each step, drafts among them."""

    def __init__(self):
        self.steps = []
        self.clock = time.monotonic
        self.added = self.aborted = self.controlled = self.stepped = self.sampled = self.close = lambda *_: None

    def planned(self, plan, request_ids):
        self.steps.append(plan.token_ids.tolist())


@pytest.mark.parametrize(
    ("has_embedding", "dtype"),
    [pytest.param(True, "float32", marks=pytest.mark.every_case), (False, "float32"), (False, "bfloat16")],
)
def test_a_head_over_tensor_ranks_drafts_what_it_does_on_one(has_embedding, dtype, deep, tmp_path):
    head = make_tiny_eagle3(tmp_path, TINY._replace(draft_vocab=300), has_embedding=has_embedding)
    planned = []
    for ranks in (1, 2):
        recorder = PlannedTokens()
        settings = {"draft_model": str(head), "speculation": 3, "tensor_parallel_size": ranks, "dtype": dtype}
        engine = new_engine(deep, recorder, **settings)
        answers(engine, GREEDY, SEEDED, GREEDY)
        engine.control(Sleep(2))
        engine.control(Wake())
        answers(engine, GREEDY, tenant="another")
        assert engine.stats.draft_tokens_total > 100
        engine.exit()
        planned.append(recorder.steps)
    if dtype == "float32":  # in bfloat16 the ranks' sums are rounded
        assert planned[0] == planned[1]


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_head_drafts_what_it_would_from_the_states_that_transformers_computes(overlaps, deep, head):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(deep, dtype=torch.float32)
    plain = PlainHead(head, model.get_input_embeddings().weight)
    settings = {"speculation": 3, "dtype": "float32", "num_kv_blocks": 64, "block_size": 8}
    config = engine_config(model=str(deep), draft_model=str(head), async_scheduling=overlaps, **settings)
    worker = build_worker(config, deep)
    recorded = Recorded(worker.draft.drafter)
    scheduler = Scheduler(
        max_num_seqs=4,
        max_num_batched_tokens=64,
        max_model_len=128,
        block_manager=BlockManager(worker.num_blocks, 8),
        drafter=recorded,
        speculation=3,
        max_concurrent_batches=worker.executor.max_concurrent_batches,
        supports_async_scheduling=overlaps,
    )
    engine = Engine(description=new_engine(deep).description, scheduler=scheduler, executor=worker.executor)
    answers(engine, GREEDY, SEEDED, GREEDY)
    assert len(recorded.proposed) > (5 if overlaps else 50)  # rows without accepted drafts overlap
    for token_ids, limit, draft in recorded.proposed:
        with torch.inference_mode():
            states = model(torch.tensor([token_ids[:-1]]), output_hidden_states=True).hidden_states
            read = torch.cat([states[layer][0] for layer in (2, 4, 5)], -1)
            assert draft == plain.drafts(token_ids, read, limit)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_head_sleeps_and_wakes_with_the_engine(level, deep, head):
    engine = new_engine(deep, draft_model=str(head), speculation=3)
    expected = answers(engine, GREEDY)
    before = engine.stats.draft_tokens_total
    engine.control(Sleep(level))
    engine.control(Wake())
    assert answers(engine, GREEDY, tenant="another") == expected
    assert engine.stats.draft_tokens_total == 2 * before > 20


def test_a_head_of_another_model_is_refused(folder, deep, head, tmp_path):
    with pytest.raises(ConfigError, match="is a head of models with 6 layers or more"):
        new_engine(folder, draft_model=str(head))
    with pytest.raises(ConfigError, match="is a head, which reads states of several layers: with pipeline_par"):
        new_engine(deep, draft_model=str(head), pipeline_parallel_size=2)
    narrow = make_tiny_eagle3(tmp_path / "narrow", TINY._replace(hidden=32))
    with pytest.raises(ConfigError, match="is a head of another model: hidden_size 32, not 64"):
        new_engine(deep, draft_model=str(narrow))
    small = make_tiny_eagle3(tmp_path / "small", TINY._replace(vocab=300))
    with pytest.raises(ConfigError, match="is a head of another model: vocab_size 300, not 384"):
        new_engine(deep, draft_model=str(small))
    gpt2 = make_tiny_model(tmp_path / "gpt2", GPT2Config(vocab_size=384, n_embd=64, n_layer=6, n_head=4))
    with pytest.raises(ConfigError, match="is a head, which GPT2LMHeadModel has no states for"):
        new_engine(gpt2, draft_model=str(head))

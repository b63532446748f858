"""An Executor without a model: it keeps a cache of tokens by slot and answers from what it reads there.

The answer to a request is a pure function of the tokens found through its block table. So a wrong block, a hit on what
nobody wrote, a lost or foreign row shows at once: as a WrongPlan, or as tokens that differ from `expected_tokens`.
"""

import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rayinfer.engine.drafting.drafter import Drafter
from rayinfer.engine.drafting.recent_answers import RecentAnswers
from rayinfer.engine.loop.engine import Engine
from rayinfer.engine.loop.engine_adapters import HostAdapterLimits
from rayinfer.engine.plan.executor_commands import AdapterFacts, BlockCopy, SleepLevel
from rayinfer.engine.plan.step_plan import (
    Int32Array,
    Int64Array,
    LogprobsArrays,
    NewRequestData,
    SampledTokens,
    StepPlan,
)
from rayinfer.engine.scheduling.kv_offload import KVOffload
from rayinfer.engine.scheduling.scheduler import Scheduler
from rayinfer.engine.scheduling.slot_allocator import SlotAllocator
from rayinfer.engine.scheduling.stored_prefixes import StoredPrefixes
from rayinfer.engine.worker.images.image_encoder import ImageEncoder
from rayinfer.errors import EngineDead
from rayinfer.grammars.compiler import GrammarCompiler
from rayinfer.kv_cache.adapter_id import adapter_id
from rayinfer.kv_cache.block_manager import BlockManager
from rayinfer.kv_cache.hybrid_blocks import HybridBlockManager
from rayinfer.kv_store.store import KVBlockStore
from rayinfer.kv_store.transfers import BlockTransfers
from rayinfer.outputs import TokenDelta, TokenLogprobs
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.sampling_params import SamplingParams, Speculation
from support.fakes.fake_scores import ScoredPlace, score
from support.fakes.fake_window_pool import FakeWindowPool
from support.fakes.virtual_time import FakeClock

VOCAB_SIZE = 97
EOS = 2
INVALID = -1  # as an answer: the logits were worth nothing
NOTHING = -1  # in a slot: nobody has written there

Answer = Callable[[list[int]], int]


class WrongPlan(BaseException):
    """The plan makes no sense; no mere Exception, which an engine would take for a request's own failure."""


def mixed_answer(context: list[int]) -> int:
    """Some token that depends on every token before it, never EOS."""
    return 3 + zlib.crc32(np.array(context, np.int32).tobytes()) % (VOCAB_SIZE - 3)


@dataclass(frozen=True)
class FinishedStep:
    """A step that has been computed."""

    sampled: SampledTokens

    def result(self) -> SampledTokens:
        """The step's tokens."""
        return self.sampled


class FakeExecutor:
    """Executor whose next token is `answer(all tokens so far)`; `failure(all tokens so far)` may return an error."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        answer: Answer = mixed_answer,
        failure: Callable[[list[int]], BaseException | None] = lambda context: None,
        num_offload_blocks: int = 0,
        max_concurrent_batches: int = 1,
        supports_async_scheduling: bool = False,
        window_pool: FakeWindowPool | None = None,
    ) -> None:
        self._window_pool = window_pool
        self.max_concurrent_batches = 2 if supports_async_scheduling else max_concurrent_batches
        self.supports_async_scheduling = supports_async_scheduling
        self.stage_idle_shares: Sequence[float] = ()
        self.death: EngineDead | None = None
        self.block_size = block_size
        self.answer = answer
        self.failure = failure
        self.plans: list[StepPlan] = []
        self.names: list[set[str]] = []  # who is in each of the plans
        self.name_of_row: Callable[[int], str] = str
        self.is_shut_down = False
        self.copies: list[BlockCopy] = []
        self.moves: list[tuple[str, SleepLevel]] = []
        self.sleep_failure: BaseException | None = None
        self.wake_failure: BaseException | None = None
        # Contexts whose new keys and values are not finite; a request that reads such a slot writes more of them.
        self.spoils: Callable[[list[int]], bool] = lambda context: False
        # [num_blocks, block_size, 3], what lies in each slot: a token, its position, and 1 if it is not finite
        self._cached = np.full((num_blocks, block_size, 3), NOTHING, np.int64)
        self._offloaded = np.full((num_offload_blocks, block_size, 3), NOTHING, np.int64)
        self.histories: dict[int, list[int]] = {}  # by row: what the sampler would know
        self._last_tokens: dict[int, int] = {}  # by row: what a step may go on from before anybody knows it
        self.new_requests: dict[int, NewRequestData] = {}
        self.reading: dict[str, Future[None]] = {}  # adapters, by folder

    def start_reading(self, folder: str) -> Future[None]:
        """Read an adapter when the test says so."""
        self.reading[folder] = Future()
        return self.reading[folder]

    def load_adapter(self, folder: str) -> AdapterFacts:
        """Read an adapter whose content is its folder's name."""
        if folder in self.reading:
            self.reading.pop(folder).result(timeout=0)
        return AdapterFacts(digest=folder, rank=1, num_bytes=1, slot_bytes=1)

    def drop_adapter(self, digest: str) -> None:
        """Forget an adapter."""

    @property
    def num_tokens_computed(self) -> int:
        """Tokens of all steps so far."""
        return sum(plan.num_tokens for plan in self.plans)

    def submit(self, plan: StepPlan) -> FinishedStep:
        """Write the step's tokens into the cache, then answer what samples."""
        self.plans.append(plan)
        self.names.append({self.name_of_row(row) for row in plan.rows.tolist()})
        for new_request in plan.new_requests:
            self.new_requests[new_request.row] = new_request
            self.histories[new_request.row] = [
                *new_request.prompt_token_ids.tolist(),
                *new_request.output_token_ids.tolist(),
            ]
        _claim(len(set(plan.slot_mapping.tolist())) == plan.num_tokens, "two tokens of one step share a slot")
        token_ids = self._token_ids(plan)
        self._slots[plan.slot_mapping, 0] = token_ids
        self._slots[plan.slot_mapping, 1] = plan.positions
        self._slots[plan.slot_mapping, 2] = 0
        contexts = [self._context(plan, i) for i in range(plan.num_requests)]
        if self._window_pool is not None:
            self._window_pool.write(plan, token_ids)
            for i, context in enumerate(contexts):
                _claim(self._window_pool.reads(plan, i, context), "a window page holds something else")
        is_spoilt = [self._spread_spoilt(plan, i, context) for i, context in enumerate(contexts)]
        answers = [self._answers(plan, i, context) for i, context in enumerate(contexts)]
        answers = [found for found, samples in zip(answers, plan.samples, strict=True) if samples]
        tokens = np.array([token_id for found in answers for token_id in found], np.int64)
        token_ids = np.where(tokens == INVALID, 0, tokens)
        counts = np.array([len(found) for found in answers], np.int32)
        scores = self._score_new_tokens(plan, token_ids, counts), self._score_prompts(plan)
        if scores[1] is not None:
            scores[1].logprobs[np.isin(scores[1].rows, plan.rows[is_spoilt])] = np.nan
        for row, token_id in zip(np.repeat(plan.rows[plan.samples], counts).tolist(), token_ids.tolist(), strict=True):
            self.histories[row].append(token_id)
            self._last_tokens[row] = token_id
        is_invalid = np.array([found[-1] == INVALID for found in answers], np.bool_)
        counts_of_drafts = None if plan.num_drafts is None else counts
        return FinishedStep(SampledTokens(token_ids, is_invalid, *scores, None, counts_of_drafts))

    def check(self) -> None:
        """Raise what the test says."""
        if self.death is not None:
            raise self.death

    def copy_blocks(self, copy: BlockCopy) -> None:
        """Copy what the slot_mapping of the blocks hold."""
        self.copies.append(copy)
        source, target = self._cached, self._offloaded
        if copy.direction == "in":
            source, target = target, source
        for source_block, target_block in zip(copy.source_blocks, copy.target_blocks, strict=True):
            target[target_block] = source[source_block]

    def release(self, level: SleepLevel, blocks_in_use: Sequence[int], window_pages_in_use: Sequence[int] = ()) -> None:
        """Forget what a model would forget."""
        if self.sleep_failure is not None:
            raise self.sleep_failure
        self.moves.append(("release", level))
        if self._window_pool is not None and level is not SleepLevel.PERSIST:
            self._window_pool.keep_only(window_pages_in_use if level is SleepLevel.OFFLOAD else ())
        if level is SleepLevel.OFFLOAD:
            unused = [block for block in range(len(self._cached)) if block not in set(blocks_in_use)]
            self._cached[unused] = NOTHING
        elif level is SleepLevel.RECOMPUTE:
            self._cached[:] = self._offloaded[:] = NOTHING
            self.histories.clear()

    def restore(self, level: SleepLevel) -> None:
        """Come back."""
        if self.wake_failure is not None:
            raise self.wake_failure
        self.moves.append(("restore", level))

    def shutdown(self) -> None:
        """Note that the engine gave it back."""
        self.is_shut_down = True

    def block_views(self) -> list[NDArray[np.uint8]]:
        """Return the bytes of all blocks."""
        return [self._cached.view(np.uint8).reshape(len(self._cached), -1)]

    def _answers(self, plan: StepPlan, i: int, context: list[int]) -> list[int]:
        """Return the new tokens of a request; those behind a draft are there only if the draft is the token before."""
        num_drafts = 0 if plan.num_drafts is None else int(plan.num_drafts[i])
        answers: list[int] = []
        for length in range(len(context) - num_drafts, len(context) + 1):
            known = context[:length]
            if (error := self.failure(known)) is not None:
                raise error
            is_spoilt = bool((self._slots[self._slots_read(plan, i)[:length], 2] == 1).any())
            answers.append(INVALID if is_spoilt else self.answer(known))
            if length < len(context) and answers[-1] != context[length]:
                break
        return answers

    def _score_new_tokens(self, plan: StepPlan, token_ids: Int64Array, counts: Int32Array) -> LogprobsArrays | None:
        places, num_top, known = [], 0, token_ids.tolist()
        for row, count in zip(plan.rows[plan.samples].tolist(), counts.tolist(), strict=True):
            new, known = known[:count], known[count:]
            wanted = self.new_requests[row].params.logprobs
            if wanted is None:
                continue
            num_top = max(num_top, wanted)
            before = self.histories[row]
            places += [ScoredPlace(row, len(before) + j, [*before, *new[:j]], new[j]) for j in range(count)]
        return score(places, num_top, VOCAB_SIZE)

    def _score_prompts(self, plan: StepPlan) -> LogprobsArrays | None:
        places, num_top = [], 0
        for i, row in enumerate(plan.rows.tolist()):
            new_request = self.new_requests[row]
            if new_request.params.prompt_logprobs is not None:
                num_top = max(num_top, new_request.params.prompt_logprobs)
                prompt = new_request.prompt_token_ids.tolist()
                first, last = int(plan.positions[plan.cu_seqlens_q[i]]) + 1, int(plan.seq_lens[i])
                places += [ScoredPlace(row, j, prompt[:j], prompt[j]) for j in range(first, min(last + 1, len(prompt)))]
        return score(places, num_top, VOCAB_SIZE)

    def _token_ids(self, plan: StepPlan) -> Int32Array:
        """Return the step's tokens, including those that were not known when it was planned."""
        token_ids = plan.token_ids.copy()
        if plan.uses_last_sampled is not None:
            _claim(self.supports_async_scheduling, "a token is taken for known")
            for i in np.flatnonzero(plan.uses_last_sampled).tolist():
                token_ids[plan.cu_seqlens_q[i + 1] - 1] = self._last_tokens[int(plan.rows[i])]
        return token_ids

    @property
    def _slots(self) -> Int64Array:
        return self._cached.reshape(-1, 3)

    def _slots_read(self, plan: StepPlan, i: int) -> Int64Array:
        positions = np.arange(plan.seq_lens[i])
        blocks: Int64Array = plan.block_tables[i][positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size

    def _spread_spoilt(self, plan: StepPlan, i: int, context: list[int]) -> bool:
        slots = self._slots_read(plan, i)
        num_drafts = 0 if plan.num_drafts is None else int(plan.num_drafts[i])
        first = len(context) - num_drafts  # the slots before are written as one chunk, then each draft's
        for length in range(first, len(context) + 1):
            is_spoilt = self.spoils(context[:length]) or bool((self._slots[slots[:length], 2] == 1).any())
            if is_spoilt:
                start = int(plan.positions[plan.cu_seqlens_q[i]]) if length == first else length - 1
                self._slots[slots[start:length], 2] = 1
        return is_spoilt

    def _context(self, plan: StepPlan, i: int) -> list[int]:
        positions, slot_mapping = np.arange(plan.seq_lens[i]), self._slots_read(plan, i)
        _claim(bool((self._slots[slot_mapping, 1] == positions).all()), "keys are read that nobody wrote there")
        context: list[int] = self._slots[slot_mapping, 0].tolist()
        history = self.histories.get(int(plan.rows[i]), [])
        num_known = len(context) - (0 if plan.num_drafts is None else int(plan.num_drafts[i]))
        _claim(context[:num_known] == history[:num_known], "the row or the cache holds another request's tokens")
        _claim(not plan.samples[i] or num_known == len(history), "it samples before its last token, or too late")
        _claim(plan.samples[i] or num_known == len(context), "it drafts within its prompt")
        return context


def _claim(is_true: bool, otherwise: str) -> None:
    if not is_true:
        raise WrongPlan(otherwise)


@dataclass
class Driven:
    """An engine on a FakeExecutor, and what it has said so far."""

    engine: Engine
    executor: FakeExecutor
    scheduler: Scheduler
    clock: FakeClock
    tokens: dict[str, list[int]] = field(default_factory=dict)
    ends: dict[str, TokenDelta] = field(default_factory=dict)
    logprobs: dict[str, list[TokenLogprobs]] = field(default_factory=dict)
    prompt_logprobs: dict[str, list[TokenLogprobs | None]] = field(default_factory=dict)
    budget: int = 0

    def add(
        self,
        request_id: str,
        prompt: Sequence[int],
        *,
        max_tokens: int | None = 4,
        outputs: Sequence[int] = (),
        priority: int = 0,
        timeout_s: float | None = None,
        tenant: str = "",
        cache_salt: str = "",
        adapter: str | None = None,
        trace: bool = False,
        **params: object,
    ) -> None:
        """Queue a request."""
        self.engine.add_request(
            GenerationRequest(
                request_id=request_id,
                prompt_token_ids=list(prompt),
                output_token_ids=list(outputs),
                sampling_params=SamplingParams(max_tokens=max_tokens, **params),  # type: ignore[arg-type]
                priority=priority,
                timeout_s=timeout_s,
                tenant=tenant,
                cache_salt=cache_salt,
                adapter=None if adapter is None else adapter_id(adapter, adapter),
                adapter_folder=adapter or "",
                trace=trace,
            )
        )
        self.tokens[request_id] = list(outputs)

    def step(self) -> list[TokenDelta]:
        """Do one step and check what it says against what was said before."""
        num_plans = len(self.executor.plans)
        deltas = self.engine.step()
        for plan in self.executor.plans[num_plans:]:
            assert plan.num_tokens <= self.budget
        self.note(deltas)
        stats = self.engine.stats
        assert 0 <= stats.kv_blocks_used <= stats.kv_blocks_total
        return deltas

    def note(self, deltas: Sequence[TokenDelta]) -> None:
        """Take deltas in: contiguous, and nothing after the end."""
        for delta in deltas:
            assert delta.request_id not in self.ends, f"{delta.request_id} speaks after its end"
            assert delta.start_pos == len(self.tokens[delta.request_id])
            self.tokens[delta.request_id] += delta.token_ids
            if delta.logprobs is not None:
                assert len(delta.logprobs) == len(delta.token_ids)
                self.logprobs.setdefault(delta.request_id, []).extend(delta.logprobs)
            if delta.prompt_logprobs is not None:
                assert delta.request_id not in self.prompt_logprobs, "the prompt is scored once"
                assert delta.token_ids or delta.finish_reason == "length"
                self.prompt_logprobs[delta.request_id] = delta.prompt_logprobs
            if delta.finish_reason is not None:
                self.ends[delta.request_id] = delta

    def abort(self, request_id: str) -> None:
        """End a request."""
        delta = self.engine.abort(request_id)
        self.note([delta] if delta else [])

    def run(self, max_steps: int = 2000) -> None:
        """Step until everything has ended and every block is back."""
        for _ in range(max_steps):
            if not self.engine.has_unfinished_requests:
                break
            self.step()
        self.settle()
        assert not self.engine.has_unfinished_requests, "somebody waits for ever"
        assert self.engine.stats.kv_blocks_used == self.engine.stats.kv_offload_blocks_used == 0
        assert self.engine.stats.kv_window_pages_used == 0
        assert self.engine.stats.num_running == self.engine.stats.num_waiting == 0

    def settle(self) -> None:
        """Wait until blocks are no longer read for the machine's store."""
        deadline = time.monotonic() + 10
        while self.scheduler.batch.has_transfers() and time.monotonic() < deadline:
            time.sleep(0.001)
            self.engine.take_block_events()

    def running(self) -> set[str]:
        """Return the requests with tokens in the latest plan."""
        return self.executor.names[-1]

    def reasons(self) -> dict[str, str | None]:
        """Return each request's finish reason."""
        return {request_id: delta.finish_reason for request_id, delta in self.ends.items()}


def drive(
    *,
    num_blocks: int = 32,
    block_size: int = 4,
    max_num_seqs: int = 8,
    budget: int = 64,
    max_model_len: int | None = None,
    caching: bool = True,
    eos_token_ids: tuple[int, ...] = (EOS,),
    answer: Answer = mixed_answer,
    failure: Callable[[list[int]], BaseException | None] = lambda context: None,
    num_offload_blocks: int = 0,
    max_concurrent_batches: int = 1,
    supports_async_scheduling: bool = False,
    open_store: Callable[[], KVBlockStore] | None = None,
    drafter: Drafter | None = None,
    speculation: Speculation = "auto",
    recent_answers: RecentAnswers | None = None,
    grammars: GrammarCompiler | None = None,
    images: ImageEncoder | None = None,
    window: int | None = None,
    num_window_pages: int | None = None,
) -> Driven:
    """Build an engine over a small pool."""
    num_pages = num_blocks if num_window_pages is None else num_window_pages
    window_pool = None if window is None else FakeWindowPool(num_pages, block_size, window)
    steps = (max_concurrent_batches, supports_async_scheduling)
    executor = FakeExecutor(num_blocks, block_size, answer, failure, num_offload_blocks, *steps, window_pool)
    clock = FakeClock()
    if window is None:
        blocks = BlockManager(num_blocks, block_size, enable_prefix_caching=caching)
    else:
        pages = {"num_window_pages": num_pages, "window": window}
        blocks = HybridBlockManager(num_blocks, block_size, **pages, enable_prefix_caching=caching)
    stored_prefixes = None
    if open_store is not None:
        views = executor.block_views
        stored_prefixes = StoredPrefixes(blocks, lambda: BlockTransfers(open_store(), views, block_size), clock)
    max_model_len = min(max_model_len or num_blocks * block_size, num_blocks * block_size)
    scheduler = Scheduler(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        max_model_len=max_model_len,
        block_manager=blocks,
        stored_prefixes=stored_prefixes,
        eos_token_ids=eos_token_ids,
        enable_prefix_caching=caching,
        offload=KVOffload(num_offload_blocks, block_size, enable_prefix_caching=caching)
        if num_offload_blocks
        else None,
        max_concurrent_batches=executor.max_concurrent_batches,
        supports_async_scheduling=supports_async_scheduling,
        drafter=drafter,
        speculation=speculation,
        recent_answers=recent_answers,
        adapters=SlotAllocator(max_num_seqs),
    )
    executor.name_of_row = scheduler.request_id_at
    description = ModelDescription(
        name="fake",
        max_model_len=max_model_len,
        vocab_size=VOCAB_SIZE,
        created=0,
        kv_blocks_total=num_blocks,
        block_size=block_size,
        eos_token_ids=eos_token_ids,
    )
    engine = Engine(
        description=description,
        scheduler=scheduler,
        executor=executor,
        grammars=grammars,
        images=images,
        clock=clock,
        host_adapters=HostAdapterLimits(max_adapters=max_num_seqs),
    )
    return Driven(engine, executor, scheduler, clock, budget=budget)


def expected_tokens(prompt: Sequence[int], num_tokens: int, answer: Answer = mixed_answer) -> list[int]:
    """Return the tokens that a request alone would get."""
    context = list(prompt)
    for _ in range(num_tokens):
        context.append(answer(context))
    return context[len(prompt) :]


def numbers(count: int, start: int = 3) -> list[int]:
    """A prompt of `count` tokens; prompts with different starts share no prefix."""
    return [3 + (start + 7 * i) % (VOCAB_SIZE - 3) for i in range(count)]

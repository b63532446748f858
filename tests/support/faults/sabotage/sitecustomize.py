"""Fault injection from outside a service: every Python with this folder on PYTHONPATH loads this file first.

A switch is a file in the folder that TEST_SWITCHES names, and may be put there and taken away while the service runs.
Without switches everything runs as it was written. Switches called `no-...` take a protection away, the others make
something happen that a protection is for.
"""

import asyncio
import dataclasses
import importlib.abc
import os
import sys
import threading
import time
from pathlib import Path

SWITCHES = os.environ.get("TEST_SWITCHES", "")
POISON = [7] * 8  # a prompt that begins so ends its engine at the next step
RESET_S = 0.1
HANG_S = 3600.0


def is_on(name):
    return os.path.exists(f"{SWITCHES}/{name}")  # noqa: PTH110 - asked at every step, and pathlib takes ten times as long


def setting(name):
    """The text of a switch; None when it is off."""
    try:
        return Path(SWITCHES, name).read_text() if is_on(name) else None
    except FileNotFoundError:
        return None


def wrap(owner, name):
    """Decorate the function that takes an attribute's place; it gets the original as its first argument."""

    def replace(function):
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: function(original, *args, **kwargs))

    return replace


# Of the engine's process


def break_steps(module):
    @wrap(module.InProcessExecutor, "submit")
    def submit(original, self, plan):
        if (seconds := setting("slow-steps")) is not None:
            time.sleep(float(seconds))
        if POISONED.is_set():
            os._exit(70)
        own = f"step-{os.getpid()}"
        if (action := setting(own)) is not None:
            if action == "raise-once":
                Path(SWITCHES, own).unlink()
            if action == "hang":
                time.sleep(HANG_S)
            raise RuntimeError("a step fails")
        return original(self, plan)


def break_engine(module):
    @wrap(module.Engine, "add_request")
    def add_request(original, self, request):
        if request.prompt_token_ids[: len(POISON)] == POISON:
            POISONED.set()
        return original(self, request)

    @wrap(module.Engine, "_run")
    def run(original, self, plan, **options):
        if not is_on("no-isolation"):
            return original(self, plan, **options)
        try:
            sampled = self._executor.submit(plan).result()
        except Exception:
            for request_id in [self.scheduler.request_id_at(int(row)) for row in plan.rows]:
                self._finish(request_id, "error")
        else:
            self._deltas += self.scheduler.apply(plan, sampled)
        return None


def break_aborts(module):
    @wrap(module.Scheduler, "finish")
    def finish(original, self, request_id, reason):
        request = self.requests.get(request_id)
        if reason == "abort" and is_on("keep-blocks") and request is not None and request.row is not None:
            for block in request.blocks:
                self.blocks._readers[block] += 1  # a reader that is never removed
        return original(self, request_id, reason)


def break_preemption(module):
    @wrap(module.Admission, "preempt")
    def preempt(original, self, request, **settings):
        if is_on("no-preemption"):
            raise RuntimeError("there is no room")
        return original(self, request, **settings)


def break_length_check(module):
    @wrap(module, "_check_length")
    def check(original, *lengths):
        return None if is_on("no-length-check") else original(*lengths)


def break_engine_deadlines(module):
    @wrap(module.Deadlines, "take_overdue")
    def take_overdue(original, self, now):
        return [] if is_on("no-deadline") else original(self, now)


def break_adapter_slots(module):
    @wrap(module.AdapterMemory, "fill_slot")
    def fill_slot(original, self, decoder, slot, digest):
        if not is_on("no-slot-check") or decoder.adapter_slots.adapters[slot] is None:
            original(self, decoder, slot, digest)


# Of the replica's process


def break_rank_watch(module):
    @wrap(module.EngineGroup, "first_loss")
    async def first_loss(original, self):
        while True:
            loss = await original(self)
            if not is_on("no-rank-watch"):
                return loss
            await asyncio.sleep(RESET_S)


# Of the router's process


def break_attempts(module):
    hopeless, suspicious = module.RetryBudget.is_exhausted.fget, module.RetryBudget.may_crash_engines.fget

    def is_exhausted(self):
        if is_on("no-migration"):
            return self.num_lost > 0
        return not is_on("no-quarantine") and hopeless(self)

    module.RetryBudget.is_exhausted = property(is_exhausted)
    module.RetryBudget.may_crash_engines = property(lambda self: not is_on("no-quarantine") and suspicious(self))


def break_link(module):
    latest_queues = {}  # by client request, across attempts and engines

    @wrap(module.EngineLink, "_watch_engine")
    async def watch(original, self):
        async def look_away():
            while True:
                await asyncio.sleep(RESET_S)
                if is_on("no-watch"):
                    self._watch.reset()

        looking_away = asyncio.ensure_future(look_away())
        try:
            await original(self)
        finally:
            looking_away.cancel()

    @wrap(module.EngineLink, "_deliver")
    def deliver(original, self, message):
        if is_on("no-watch"):
            message = dataclasses.replace(message, stalled_s=0.0)
        known = set(self._routes)
        original(self, message)
        for delta in message.deltas if is_on("no-fence") else ():
            queue = latest_queues.get(delta.request_id.rpartition("/")[0])
            if delta.request_id not in known and queue is not None:
                queue.put(delta)

    @wrap(module.EngineLink, "send")
    def send(original, self, requests, queue, *others):
        if is_on("no-fence"):
            latest_queues[requests[0].request_id.rpartition("/")[0]] = queue
        original(self, requests, queue, *others)

    @wrap(module.EngineLink, "fail")
    def fail(original, self, error):
        if is_on("no-fence"):
            self._fail_queues(error)
        else:
            original(self, error)

    @wrap(module.EngineLink, "_abort")
    async def abort(original, self, *args):
        if not is_on("no-abort"):
            await original(self, *args)


def break_dispatcher(module):
    @wrap(module.Dispatcher, "_next_output")
    async def next_output(original, self, run, attempt):
        return await original(self, run._replace(deadline=None) if is_on("no-deadline") else run, attempt)


def break_context_check(module):
    @wrap(module.PromptLimit, "check")
    def check(original, *args, **kwargs):
        return None if is_on("no-length-check") else original(*args, **kwargs)


def break_admission(module):
    @wrap(module.AdmissionControl, "admit")
    def admit(original, self, *args, **kwargs):
        if is_on("no-admission"):
            self.limits = self.limits.model_copy(update={"max_waiting_requests": 10**9, "max_waiting_tokens": 10**9})
        return original(self, *args, **kwargs)


def break_queue(module):
    @wrap(module.DeltaQueue, "put")
    def put(original, self, delta):
        if is_on("no-buffer") and self._pending:
            time.sleep(0.02)  # a slow reader delays the engine's connection
        original(self, delta)


def break_reconciler(module):
    def controller_answers():
        try:
            ray = sys.modules["ray"]  # a router's process has it
            controller = ray.get_actor("SERVE_CONTROLLER_ACTOR", namespace="serve")
            ray.get(controller.check_alive.remote(), timeout=1.0)
        except Exception:
            return False
        return True

    @wrap(module.EngineReconciler, "run")
    async def run(original, self):
        async def doubt():
            """Know only engines that the controller would confirm at any moment."""
            forgotten = None
            while True:
                await asyncio.sleep(RESET_S)
                is_confirmed = not is_on("no-memory") or await asyncio.to_thread(controller_answers)
                if not is_confirmed and forgotten is None:
                    forgotten = self._reported
                    self.set_desired({})
                    for name in list(self._engines.names):
                        self._engines.remove(name, "the controller does not confirm it")
                elif is_confirmed and forgotten is not None:
                    self.set_desired(self._reported or forgotten)
                    forgotten = None

        doubting = asyncio.ensure_future(doubt())
        try:
            await original(self)
        finally:
            doubting.cancel()


PATCHES = {
    "rayinfer.adapters.adapter_memory": break_adapter_slots,
    "rayinfer.engine.worker.in_process_executor": break_steps,
    "rayinfer.engine.loop.engine": break_engine,
    "rayinfer.engine.scheduling.admission": break_preemption,
    "rayinfer.engine.scheduling.scheduler": break_aborts,
    "rayinfer.engine.scheduling.request_checks": break_length_check,
    "rayinfer.engine.scheduling.deadlines": break_engine_deadlines,
    "rayinfer_deployments.engine.engine_ranks": break_rank_watch,
    "rayinfer_deployments.router.engine_reconciler": break_reconciler,
    "rayinfer.routing.retry_budget": break_attempts,
    "rayinfer.routing.engine_link": break_link,
    "rayinfer.routing.dispatch": break_dispatcher,
    "rayinfer.routing.admission": break_admission,
    "rayinfer.routing.delta_queue": break_queue,
    "rayinfer.servers.generation.prompt_tokens": break_context_check,
}
POISONED = threading.Event()


class BrokenLoader(importlib.abc.Loader):
    """Module loader that breaks a module before its first use."""

    def __init__(self, loader, patch):
        self._loader = loader
        self._patch = patch

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        self._patch(module)


class BreakingFinder(importlib.abc.MetaPathFinder):
    """Finder of the modules to be broken, by the standard search."""

    def find_spec(self, name, path, target=None):
        if name not in PATCHES:
            return None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)):
                spec.loader = BrokenLoader(spec.loader, PATCHES[name])
                return spec
        return None


if SWITCHES:
    sys.meta_path.insert(0, BreakingFinder())

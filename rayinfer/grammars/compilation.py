"""Compilation of grammars under limits."""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol, TypeVar

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.grammar_text import grammar_text
from rayinfer.grammars.spec import StructuredOutputsParams

# A compilation ends within about a quarter of a second, and the states of a matcher within some 40 MB.
LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 100_000,
    "max_items_in_row": 1_000,
}
_LIMITS_BY_WORDS = {"items; max is": "max_items_in_row"}  # where a message does not name the limit
NICENESS = 10
_MAX_MESSAGE_CHARS = 400

Result = TypeVar("Result")


class Run(Protocol):
    """Function that runs work."""

    def __call__(self, work: Callable[[], Result], /) -> Result:
        """Run it and return its result."""
        ...


def call(work: Callable[[], Result], /) -> Result:
    """Run work in the caller's thread."""
    return work()


def compile_grammar(
    spec: StructuredOutputsParams, tokenizer: LLTokenizer, special_tokens: tuple[str, ...] = (), run: Run = call
) -> LLMatcher:
    """Compile a grammar and compute its first mask; raises InvalidParameter with the limit or keyword at fault.

    `run` is given the part that takes long, which does without the interpreter's lock.
    """
    try:
        text = grammar_text(spec, special_tokens)
    except InvalidParameter:
        raise
    except (ValueError, AssertionError) as error:
        raise _refusal(spec, str(error)) from None
    matcher, problem = run(partial(_compile_text, text, tokenizer))
    if problem is not None:
        raise _refusal(spec, problem)
    return matcher


def _compile_text(text: str, tokenizer: LLTokenizer) -> tuple[LLMatcher, str | None]:
    limits = LLParserLimits(**LIMITS, verbose_errors=False)  # type: ignore[arg-type]
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    # Some limits are only met by a mask, or behind the text that every answer begins with.
    return matcher, _error_at(matcher) or _error_at(_after_forced_text(matcher, tokenizer))


def _error_at(matcher: LLMatcher) -> str | None:
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher.get_error() if matcher.is_error() else None


def _after_forced_text(matcher: LLMatcher, tokenizer: LLTokenizer) -> LLMatcher:
    ahead = matcher.deep_copy()
    ahead.consume_tokens(ahead.compute_ff_tokens())
    if not ahead.is_error() and not ahead.is_stopped():
        # The last of its tokens are not forced where others span its end.
        rest = tokenizer.tokenize_bytes(ahead.compute_ff_bytes())
        ahead.consume_tokens(rest[: ahead.validate_tokens(rest)])
    return ahead


def reason(message: str) -> str:
    """Return llguidance's message in one line, with the limits that it is about."""
    names = [name for name in LIMITS if name in message or name.replace("_", " ") in message]
    names += [name for words, name in _LIMITS_BY_WORDS.items() if words in message]
    limits = "".join(f" (limit {name}: {LIMITS[name]})" for name in names)
    text = " ".join(message.replace("<non-verbose/>", "").split()).removeprefix("{ ")
    return text[:_MAX_MESSAGE_CHARS] + limits


def grammar_digest(spec: StructuredOutputsParams) -> bytes:
    """Return a digest that is equal for equal specifications."""
    return hashlib.sha256(msgspec.msgpack.encode(spec)).digest()


class CompilationThreads:
    """Two threads that do one compilation after the other, below the priority of the threads that serve.

    Only what does without the interpreter's lock is done at low priority: a thread that waits for a core while it has
    the lock holds up every other thread of the process.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._low = ThreadPoolExecutor(1, thread_name_prefix=f"{name}-low", initializer=_lower_priority)

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a compilation, which may call `run_low`."""
        return self._executor.submit(work)

    def run_low(self, work: Callable[[], Result], /) -> Result:
        """Run a part of a compilation at low priority."""
        return self._low.submit(work).result()

    def close(self) -> None:
        """Drop what is queued."""
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._low.shutdown(wait=False)


def _lower_priority() -> None:
    if hasattr(os, "setpriority"):  # on Linux a thread has its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _refusal(spec: StructuredOutputsParams, message: str) -> InvalidParameter:
    return InvalidParameter(f"structured_outputs.{spec.kind}: {reason(message)}", "structured_outputs")

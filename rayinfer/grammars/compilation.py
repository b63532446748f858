"""Compilation of grammars under limits."""

import hashlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

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
NICENESS = 10
_MAX_MESSAGE_CHARS = 400

Result = TypeVar("Result")


def compile_grammar(
    spec: StructuredOutputsParams, tokenizer: LLTokenizer, special_tokens: tuple[str, ...] = ()
) -> LLMatcher:
    """Compile a grammar and compute its first mask; raises InvalidParameter with the limit or keyword at fault."""
    try:
        text = grammar_text(spec, special_tokens)
    except InvalidParameter:
        raise
    except (ValueError, AssertionError) as error:
        raise _refusal(spec, str(error)) from None
    limits = LLParserLimits(**LIMITS, verbose_errors=False)  # type: ignore[arg-type]
    matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
    if not matcher.is_error():
        matcher.compute_bitmask()  # some limits are only met here
    if matcher.is_error():
        raise _refusal(spec, matcher.get_error())
    return matcher


def grammar_digest(spec: StructuredOutputsParams) -> bytes:
    """Return a digest that is equal for equal specifications."""
    return hashlib.sha256(msgspec.msgpack.encode(spec)).digest()


class LowPriorityThread:
    """Runs one piece of work after the other, below the priority of the threads that serve."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name, initializer=_lower_priority)

    def submit(self, work: Callable[[], Result]) -> Future[Result]:
        """Queue a piece of work."""
        return self._executor.submit(work)

    def close(self) -> None:
        """Drop what is queued."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def _lower_priority() -> None:
    if hasattr(os, "setpriority"):  # on Linux a thread has its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)


def _refusal(spec: StructuredOutputsParams, message: str) -> InvalidParameter:
    names = [name for name in LIMITS if name in message or name.replace("_", " ") in message]
    limits = "".join(f" (limit {name}: {LIMITS[name]})" for name in names)
    reason = " ".join(message.split())[:_MAX_MESSAGE_CHARS]
    return InvalidParameter(f"structured_outputs.{spec.kind}: {reason}{limits}", "structured_outputs")

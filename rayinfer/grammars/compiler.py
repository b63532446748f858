"""Compiler of grammars for one model's tokens."""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple
from weakref import WeakValueDictionary

from llguidance import LLMatcher, LLTokenizer

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compilation import CompilationThreads, Run, call, compile_grammar, grammar_digest
from rayinfer.grammars.spec import StructuredOutputsParams

MAX_LATEST_GRAMMARS = 64
MAX_REFUSED_GRAMMARS = 1024


class TokenizerFile(NamedTuple):
    """The contents of a tokenizer.json, and the texts of its special tokens."""

    contents: str
    special_tokens: tuple[str, ...]


class CompiledGrammar:
    """A grammar that stays compiled as long as this is referred to."""

    __slots__ = ("__weakref__", "matcher")

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher  # at the beginning of an answer: answers have copies


class GrammarCompiler:
    """Compiles grammars and keeps the latest ones, and those in use; may be used from any thread.

    Why the latest others were refused is kept as well, so that none of them is compiled again.
    `read_tokenizer` is called by `prepare`, or when the first grammar is compiled.
    """

    def __init__(
        self, read_tokenizer: Callable[[], TokenizerFile], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._read_tokenizer = read_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._special_tokens: tuple[str, ...] = ()
        self._tokenizer: LLTokenizer | None = None
        self._latest: OrderedDict[bytes, CompiledGrammar] = OrderedDict()
        self._refused: OrderedDict[bytes, str] = OrderedDict()  # why
        self._compiled: WeakValueDictionary[bytes, CompiledGrammar] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._threads = CompilationThreads("grammars")

    def has(self, spec: StructuredOutputsParams) -> bool:
        """Return whether the grammar is compiled."""
        with self._lock:
            return grammar_digest(spec) in self._compiled

    def prepare(self) -> None:
        """Read the tokenizer, in a thread of its own: it holds the interpreter's lock for tenths of a second."""
        threading.Thread(target=self._prepare, name="grammar-tokenizer", daemon=True).start()

    def compile(self, spec: StructuredOutputsParams, run: Run = call) -> CompiledGrammar:
        """Compile the grammar, if it is not; raises InvalidParameter."""
        digest = grammar_digest(spec)
        with self._lock:
            compiled = self._compiled.get(digest)
            if compiled is not None:
                return self._used(digest, compiled)
            if (refusal := self._refused.get(digest)) is not None:
                raise InvalidParameter(refusal, "structured_outputs")
            tokenizer = self._loaded_tokenizer()
        try:
            compiled = CompiledGrammar(compile_grammar(spec, tokenizer, self._special_tokens, run))
        except InvalidParameter as error:
            self._keep_refusal(digest, error.message)
            raise
        with self._lock:
            return self._used(digest, compiled)

    def start(self, spec: StructuredOutputsParams) -> Future[CompiledGrammar]:
        """Compile the grammar in a thread of low priority."""
        return self._threads.submit(lambda: self.compile(spec, self._threads.run_low))

    def matcher(self, spec: StructuredOutputsParams) -> LLMatcher:
        """Return a matcher of its own for one answer, compiling the grammar if need be; raises InvalidParameter."""
        compiled = self.compile(spec)
        with self._lock:
            return compiled.matcher.deep_copy()

    def close(self) -> None:
        """Drop what waits to be compiled."""
        self._threads.close()

    def _used(self, digest: bytes, compiled: CompiledGrammar) -> CompiledGrammar:
        self._compiled[digest] = self._latest[digest] = compiled
        self._latest.move_to_end(digest)
        while len(self._latest) > MAX_LATEST_GRAMMARS:
            self._latest.popitem(last=False)
        return compiled

    def _keep_refusal(self, digest: bytes, message: str) -> None:
        with self._lock:
            self._refused[digest] = message
            while len(self._refused) > MAX_REFUSED_GRAMMARS:
                self._refused.popitem(last=False)

    def _prepare(self) -> None:
        with self._lock, contextlib.suppress(InvalidParameter):  # which the first grammar meets again
            self._loaded_tokenizer()

    def _loaded_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            if not self._eos_token_ids:
                raise InvalidParameter(
                    "structured_outputs needs a model with an end token, which this one lacks", "structured_outputs"
                )
            contents, self._special_tokens = self._read_tokenizer()
            try:
                self._tokenizer = LLTokenizer(contents, n_vocab=self._vocab_size, eos_token=self._eos_token_ids)
            except Exception as error:  # of Rust, without a class of their own
                raise InvalidParameter(
                    f"structured_outputs is not possible with this model's tokenizer: {error}", "structured_outputs"
                ) from None
        return self._tokenizer

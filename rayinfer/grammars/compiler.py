"""Compiler of grammars for one model's tokens."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from llguidance import LLMatcher, LLTokenizer

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compilation import LowPriorityThread, compile_grammar, grammar_digest
from rayinfer.grammars.spec import StructuredOutputsParams

MAX_CACHED_GRAMMARS = 64


class TokenizerFile(NamedTuple):
    """The contents of a tokenizer.json, and the texts of its special tokens."""

    contents: str
    special_tokens: tuple[str, ...]


class GrammarCompiler:
    """Compiles grammars and keeps the latest ones; may be used from any thread.

    `read_tokenizer` is called when the first grammar is compiled.
    """

    def __init__(
        self, read_tokenizer: Callable[[], TokenizerFile], vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._read_tokenizer = read_tokenizer
        self._vocab_size = vocab_size
        self._eos_token_ids = list(eos_token_ids)
        self._special_tokens: tuple[str, ...] = ()
        self._tokenizer: LLTokenizer | None = None
        self._compiled: OrderedDict[bytes, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = LowPriorityThread("grammars")

    def has(self, spec: StructuredOutputsParams) -> bool:
        """Return whether the grammar is compiled."""
        with self._lock:
            return grammar_digest(spec) in self._compiled

    def compile(self, spec: StructuredOutputsParams) -> None:
        """Compile the grammar, if it is not; raises InvalidParameter."""
        self.matcher(spec)

    def start(self, spec: StructuredOutputsParams) -> Future[None]:
        """Compile the grammar in a thread of low priority."""
        return self._thread.submit(lambda: self.compile(spec))

    def matcher(self, spec: StructuredOutputsParams) -> LLMatcher:
        """Return a matcher of its own for one answer, compiling the grammar if need be; raises InvalidParameter."""
        digest = grammar_digest(spec)
        with self._lock:
            compiled = self._compiled.get(digest)
            if compiled is not None:
                self._compiled.move_to_end(digest)
                return compiled.deep_copy()
            tokenizer = self._loaded_tokenizer()
        compiled = compile_grammar(spec, tokenizer, self._special_tokens)
        with self._lock:
            self._compiled[digest] = compiled
            while len(self._compiled) > MAX_CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
            return compiled.deep_copy()

    def close(self) -> None:
        """Drop what waits to be compiled."""
        self._thread.close()

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

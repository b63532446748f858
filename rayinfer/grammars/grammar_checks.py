"""Checks of grammars where there is no model: in servers, while there is no engine that could compile them."""

from collections import OrderedDict
from concurrent.futures import Future
from functools import lru_cache

from llguidance import LLTokenizer, TokenizerWrapper

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.compilation import CompilationThreads, Run, compile_grammar, grammar_digest
from rayinfer.grammars.spec import StructuredOutputsParams

MAX_VERDICTS = 4096
_NUM_BYTES = 256


class _ByteTokenizer:
    """A tokenizer of bytes and special tokens: as far as limits go, as good as any other."""

    bos_token_id = None
    eos_token_id = _NUM_BYTES

    def __init__(self, special_tokens: tuple[str, ...]) -> None:
        names = ("<|end|>", *special_tokens)
        self.tokens = [bytes([byte]) for byte in range(_NUM_BYTES)] + [name.encode() for name in names]
        self.special_token_ids = list(range(_NUM_BYTES, _NUM_BYTES + len(names)))

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


class GrammarChecks:
    """Compiles each grammar once, in a thread of low priority, one at a time, and keeps the verdict."""

    def __init__(self) -> None:
        self._threads = CompilationThreads("grammar-checks")
        self._verdicts: OrderedDict[tuple[bytes, tuple[str, ...]], str | None] = OrderedDict()  # of one thread

    def check(self, spec: StructuredOutputsParams, special_tokens: tuple[str, ...] = ()) -> None:
        """Wait until the grammar is known to compile; raises InvalidParameter."""
        self.start(spec, special_tokens).result()

    def start(self, spec: StructuredOutputsParams, special_tokens: tuple[str, ...] = ()) -> Future[None]:
        """Begin to compile the grammar; the future raises InvalidParameter for one that does not compile."""
        return self._threads.submit(lambda: self._compile(spec, special_tokens))

    def _compile(self, spec: StructuredOutputsParams, special_tokens: tuple[str, ...]) -> None:
        key = grammar_digest(spec), special_tokens
        if key not in self._verdicts:
            self._verdicts[key] = _verdict(spec, special_tokens, self._threads.run_low)
            while len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        if (verdict := self._verdicts[key]) is not None:
            raise InvalidParameter(verdict, "structured_outputs")


@lru_cache(maxsize=16)
def _byte_tokenizer(special_tokens: tuple[str, ...]) -> LLTokenizer:
    tokenizer = _ByteTokenizer(special_tokens)
    return LLTokenizer(TokenizerWrapper(tokenizer), n_vocab=len(tokenizer.tokens))


def _verdict(spec: StructuredOutputsParams, special_tokens: tuple[str, ...], run: Run) -> str | None:
    try:
        compile_grammar(spec, _byte_tokenizer(special_tokens), special_tokens, run)
    except InvalidParameter as error:
        return error.message
    return None

import numpy as np
import pytest

from rayinfer.engine.drafting.drafter import DraftRow
from rayinfer.engine.drafting.grammar_drafter import GrammarDrafter
from rayinfer.engine.drafting.prompt_lookup import PromptLookup
from rayinfer.grammars.compiler import GrammarCompiler, TokenizerFile
from rayinfer.grammars.spec import StructuredOutputsParams
from support.structured.byte_tokenizer import byte_tokenizer_json

PROMPT = b"say yes. yes."
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["ada", "alan"]}},
    "required": ["name"],
    "additionalProperties": False,
}


@pytest.fixture
def drafter():
    compiler = GrammarCompiler(lambda: TokenizerFile(byte_tokenizer_json(), ()), 257, [256])
    yield GrammarDrafter(compiler, PromptLookup())
    compiler.close()


def row_of(output, grammar, *, request="one", row=0, limit=16, prompt=PROMPT):
    token_ids = np.array([*prompt, *output], np.int32)
    return DraftRow(row=row, request=request, token_ids=token_ids, prompt_len=len(prompt), limit=limit, grammar=grammar)


def drafts(drafter, *rows):
    return [bytes(draft) for draft in drafter.propose(rows)]


def test_what_a_grammar_forces_is_drafted(drafter):
    grammar = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
    assert drafts(drafter, row_of(b"", grammar)) == [b'{"name":"a']
    assert drafts(drafter, row_of(b'{"name":"al', grammar)) == [b'an"}']
    assert drafts(drafter, row_of(b'{"name":"al', grammar, limit=2)) == [b"an"]


def test_another_drafter_is_cut_where_the_grammar_refuses(drafter):
    # It proposes "yes." again, of which the grammar allows a part.
    assert drafts(drafter, row_of(b"ye", StructuredOutputsParams(regex="(yes|yet)!*"))) == [b"s"]
    assert drafts(drafter, row_of(b"ye", StructuredOutputsParams(regex="ye(a|t)"), request="two")) == [b""]
    assert drafts(drafter, row_of(b" y", None, limit=6)) == [b"es. ye"]


def test_rows_with_and_without_a_grammar_are_answered_in_their_order(drafter):
    grammar = StructuredOutputsParams(regex="yes or no")
    rows = row_of(b" y", None, row=0, limit=3), row_of(b"y", grammar, row=1), row_of(b" y", None, row=2, limit=2)
    assert drafts(drafter, *rows) == [b"es.", b"es or no", b"es"]


def test_a_row_follows_its_request_and_not_the_one_before(drafter):
    grammar = StructuredOutputsParams(regex="abc|xyz")
    assert drafts(drafter, row_of(b"a", grammar, request="one")) == [b"bc"]
    assert drafts(drafter, row_of(b"x", grammar, request="two")) == [b"yz"]
    assert drafts(drafter, row_of(b"xy", grammar, request="two")) == [b"z"]


def test_a_grammar_that_meets_a_limit_drafts_nothing(drafter):
    grammar = StructuredOutputsParams(regex="yes")
    assert drafts(drafter, row_of(b"no", grammar)) == [b""]  # no answer has it: the sampler forbids it

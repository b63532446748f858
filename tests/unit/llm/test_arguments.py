"""Prompt arguments of `LLM`."""

import numpy as np
import pytest

from rayinfer.errors import InvalidParameter
from rayinfer.llm.arguments import as_prompts, checked_token_ids


def test_prompts_may_be_of_any_kind_that_holds_some():
    assert as_prompts("one text") == ["one text"]
    assert as_prompts(iter(["a", [1, 2]])) == ["a", [1, 2]]
    assert checked_token_ids(np.array([3, 4])) == [3, 4]


# An array of no dimension calls itself iterable and is not.
@pytest.mark.parametrize("wrong", [None, 3, b"text", {"a": 1}, np.array(3)], ids=str)
def test_what_holds_no_prompts_and_no_tokens_is_refused_by_name(wrong):
    with pytest.raises(InvalidParameter, match="prompts must be texts or lists of token ids, got"):
        as_prompts(wrong)
    with pytest.raises(InvalidParameter, match="prompt must be a text or a list of token ids, got"):
        checked_token_ids(wrong)

import math
from dataclasses import replace

import pytest

from rayinfer.outputs import Logprob
from rayinfer.servers.openai.logprobs_formatter import CompletionLogprobs, LogprobsFormatter
from rayinfer.tokenization.token_offsets import TokenOffsets
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.byte_level(), {"eos_token": "</s>"})
FALLBACK_BACKEND = tiny_tokenizers.byte_fallback()
FALLBACK = Tokenizer(FALLBACK_BACKEND, {"eos_token": "</s>"})
A, B, C = (TOKENIZER.encode(letter)[0] for letter in "abc")
PART = TOKENIZER.encode("\N{OLD ITALIC LETTER A}")[0]
WORDING = LogprobsFormatter(tokenizer=TOKENIZER, num_top=2)
PLACE = {A: Logprob(-3.5, 9), B: Logprob(-0.25, 1), PART: Logprob(-2.0, 2)}


def lists(formatter: LogprobsFormatter = WORDING, context=(), **settings) -> CompletionLogprobs:
    settings = {"skip_special_tokens": True} | settings
    return CompletionLogprobs(formatter, TokenOffsets(formatter.tokenizer, context, **settings))


def test_a_chat_token_has_its_bytes_and_the_top_logprobs_in_order():
    assert WORDING.chat([A], [PLACE]) == {
        "content": [
            {
                "token": "a",
                "logprob": -3.5,
                "bytes": [97],
                "top_logprobs": [
                    {"token": "b", "logprob": -0.25, "bytes": [98]},
                    {"token": r"bytes:\xf0", "logprob": -2.0, "bytes": [0xF0]},
                ],
            }
        ],
        "refusal": None,
    }


@pytest.mark.parametrize(("num_top", "reported"), [(0, []), (1, ["b"]), (2, ["b", "a"]), (3, ["b", "a", "c"])])
def test_the_chosen_token_is_among_the_likeliest_only_if_it_is_one(num_top, reported):
    formatter = replace(WORDING, num_top=num_top)
    place = {A: Logprob(-2.0, 2), B: Logprob(-1.0, 1), C: Logprob(-3.0, 3)}
    (entry,) = formatter.chat([A], [place])["content"]
    assert [token["token"] for token in entry["top_logprobs"]] == reported
    assert list(formatter.by_text(place)) == {0: ["a"], 1: ["a", "b"], 2: ["a", "b"], 3: ["a", "b", "c"]}[num_top]


def test_what_json_cannot_say_is_the_lowest_number():
    place = {A: Logprob(-math.inf, 400), B: Logprob(-1e5, 1), C: Logprob(math.nan, 2)}
    assert set(WORDING.by_text(place).values()) == {-9999.0}
    assert WORDING.chat([A], [place])["content"][0]["logprob"] == -9999.0
    assert WORDING.prompt([place])[0][str(A)]["logprob"] == -9999.0


def test_a_completions_lists_are_parallel_and_a_prompts_first_token_has_null():
    assert lists().format([A, B], [None, {B: Logprob(-1.0, 1)}]) == {
        "text_offset": [0, 1],
        "token_logprobs": [None, -1.0],
        "tokens": ["a", "b"],
        "top_logprobs": [None, {"b": -1.0}],
    }


def test_offsets_go_on_from_one_chunk_to_the_next():
    growing = lists(context=[A])
    face = TOKENIZER.encode("\N{OLD ITALIC LETTER A}")
    offsets = []
    for token_id in [A, *face, TOKENIZER.eos_token_id, B]:
        offsets += growing.format([token_id], [{token_id: Logprob(-1.0, 1)}])["text_offset"]
    assert offsets == [0, 1, 1, 1, 1, 2, 2]


def test_of_tokens_with_one_text_none_is_lost_and_the_chosen_one_keeps_it():
    letter, byte = FALLBACK.encode("onea")[-1], FALLBACK_BACKEND.token_to_id("<0x61>")
    assert FALLBACK.token_text(letter).text == FALLBACK.token_text(byte).text == "a"
    formatter = LogprobsFormatter(tokenizer=FALLBACK, num_top=2)
    for first, second in ((letter, byte), (byte, letter)):
        place = {first: Logprob(-2.0, 2), second: Logprob(-1.0, 1)}
        assert formatter.by_text(place) == {"a": -2.0, f"token_id:{second}": -1.0}


def test_tokens_can_be_named_by_their_ids():
    formatter = replace(WORDING, as_token_ids=True)
    assert lists(formatter).format([A], [PLACE])["tokens"] == [f"token_id:{A}"]
    assert set(formatter.by_text(PLACE)) == {f"token_id:{token_id}" for token_id in PLACE}
    (entry,) = formatter.chat([A], [PLACE])["content"]
    assert (entry["token"], entry["bytes"]) == (f"token_id:{A}", [97])
    assert entry["top_logprobs"][1] == {"token": f"token_id:{PART}", "logprob": -2.0, "bytes": [0xF0]}


def test_prompt_logprobs_are_by_token_id_with_ranks():
    assert WORDING.prompt([None, PLACE]) == [
        None,
        {
            str(A): {"logprob": -3.5, "rank": 9, "decoded_token": "a"},
            str(B): {"logprob": -0.25, "rank": 1, "decoded_token": "b"},
            str(PART): {"logprob": -2.0, "rank": 2, "decoded_token": r"bytes:\xf0"},
        },
    ]


def test_no_more_logprobs_than_requested_are_sent():
    formatter = replace(WORDING, num_top=1)
    assert list(formatter.prompt([PLACE])[0]) == [str(A), str(B)]

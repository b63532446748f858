"""LLM with models that read a prompt and write a text of its own: the face is the same, and so is the text."""

import json

import pytest
from transformers import MarianTokenizer

from rayinfer import LLM, SamplingParams
from rayinfer.errors import InvalidParameter
from support.golden.encoder_decoder_runs import make_tiny_marian, make_tiny_t5, transformers_tokens
from support.tiny_models.tiny_marian_tokenizer import save_marian_tokenizer
from support.tiny_models.tiny_tokenizers import save, unigram

TEXTS = ["Hello, how are you today?", "The quick brown fox", "Paris", "What is the capital of the old man?", "house"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SETTINGS = {"max_num_seqs": 3, "max_num_batched_tokens": 32, "max_model_len": 64}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = save_marian_tokenizer(tmp_path_factory.mktemp("marian"))
    vocabulary = json.loads((folder / "vocab.json").read_text())
    pad, end = vocabulary["<pad>"], vocabulary["</s>"]
    return make_tiny_marian(folder, vocab_size=len(vocabulary), pad=pad, end=end)


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), **SETTINGS) as llm:
        yield llm


def test_sentences_are_translated_as_transformers_does_it(llm, folder):
    theirs = MarianTokenizer.from_pretrained(folder)
    for text, output in zip(TEXTS, llm.generate(TEXTS, GREEDY, use_tqdm=False), strict=True):
        assert output.prompt == text
        assert output.prompt_token_ids == theirs(text)["input_ids"]
        (answer,) = output.outputs
        assert answer.token_ids == transformers_tokens(folder, output.prompt_token_ids, 24)
        assert answer.text.strip() == theirs.decode(answer.token_ids, skip_special_tokens=True)


def test_a_stream_says_the_same(llm):
    whole = llm.generate(TEXTS[0], GREEDY, use_tqdm=False)[0].outputs[0].text
    assert "".join(output.outputs[0].text for output in llm.stream(TEXTS[0], GREEDY)) == whole


def test_several_choices_stops_and_penalties_work_as_everywhere(llm):
    params = SamplingParams(n=3, temperature=1.3, seed=1, stop=["e"], repetition_penalty=1.2, max_tokens=20, logprobs=1)
    (output,) = llm.generate(TEXTS[1], params, use_tqdm=False)
    assert len({answer.text for answer in output.outputs}) == 3
    assert all("e" not in answer.text for answer in output.outputs)
    assert all(len(answer.logprobs) == len(answer.token_ids) for answer in output.outputs)


def test_padding_as_the_only_allowed_token_is_rejected(llm):
    ((pad,),) = llm.description.bad_token_sequences
    with pytest.raises(InvalidParameter, match="the model never generates"):
        llm.generate(TEXTS[0], SamplingParams(allowed_token_ids=[pad]), use_tqdm=False)


def test_a_conversation_is_refused_for_there_is_no_template(llm):
    with pytest.raises(InvalidParameter, match="no chat template"):
        llm.chat([{"role": "user", "content": "Hello"}])


def test_t5_answers_in_the_same_way(tmp_path):
    backend = unigram()
    make_tiny_t5(tmp_path, vocab_size=backend.get_vocab_size())
    save(backend, tmp_path)
    with LLM(str(tmp_path), **SETTINGS) as llm:
        prompt = llm.tokenizer.encode("one two three")
        (output,) = llm.generate("one two three", GREEDY, use_tqdm=False)
        (answer,) = output.outputs
        assert answer.token_ids == transformers_tokens(tmp_path, prompt, 24)
        assert answer.text == llm.tokenizer.decode(answer.token_ids)

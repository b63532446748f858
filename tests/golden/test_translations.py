"""Greedy translations of a real Marian model against transformers' `generate`."""

import pytest
import torch
from transformers import MarianMTModel, MarianTokenizer

from rayinfer import LLM, SamplingParams
from support.tiny_models.real_models import real_model

SENTENCES = [
    "Hello, how are you today?",
    "Yes.",
    "The weather is nice, and the children are playing in the garden behind the old house.",
    "I would like to book a table for two people at eight o'clock.",
    "She said that she had never seen the sea before.",
    "What time does the last train to Lyon leave?",
    "The committee will examine the report and publish its conclusions before the end of the year.",
    "Please turn off the lights when you leave.",
    "If it rains tomorrow, we will stay at home and read.",
    "My brother works in a small bakery near the station.",
    "The results, which were published in 2019, surprised many scientists.",
    "He bought three apples, two oranges and a loaf of bread for €7.50.",
    "“Be careful!” shouted the guard – but it was too late…",
    "This machine translates texts from one language into another.",
    "Free trade agreements have been signed by more than forty countries since the end of the war.",
    "Do you know where I can find a good doctor?",
    "The cat sleeps on the sofa all day long; the dog prefers the floor.",
    "Nobody knew why the museum had been closed for so many months.",
    "We are looking forward to seeing you again next summer.",
    "In the beginning there was nothing but silence, and then, slowly, the city woke up and the first buses came.",
]


@pytest.mark.models
def test_twenty_sentences_are_translated_as_transformers_translates_each():
    folder = real_model("opus-mt-en-fr")
    with LLM(str(folder), dtype="float32", max_num_seqs=8, max_model_len=128) as llm:
        outputs = llm.generate(SENTENCES, SamplingParams(temperature=0.0, max_tokens=64), use_tqdm=False)
    model, tokenizer = MarianMTModel.from_pretrained(folder), MarianTokenizer.from_pretrained(folder)
    for sentence, output in zip(SENTENCES, outputs, strict=True):
        encoded = tokenizer([sentence], return_tensors="pt")
        assert output.prompt_token_ids == encoded["input_ids"][0].tolist()
        with torch.inference_mode():
            generated = model.generate(**encoded, num_beams=1, do_sample=False, max_new_tokens=64)[0, 1:]
        (answer,) = output.outputs
        assert answer.token_ids == generated.tolist()
        assert answer.text == tokenizer.decode(generated, skip_special_tokens=True)
        assert answer.finish_reason == "stop"

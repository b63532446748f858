from rayinfer.outputs import CompletionOutput, Logprob, RequestOutput
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.openai.logprobs_formatter import LogprobsFormatter
from rayinfer.servers.openai.response_settings import ResponseSettings, UsageCounter
from rayinfer.tokenization.tokenizer import Tokenizer
from support.tiny_models import tiny_tokenizers

TOKENIZER = Tokenizer(tiny_tokenizers.unigram(), {"eos_token": "</s>"})
WORDS = TOKENIZER.encode("one two")
WORDING = LogprobsFormatter(tokenizer=TOKENIZER, num_top=0)


def settings(**fields) -> ResponseSettings:
    return ResponseSettings(id="cmpl-1", created=1, model="m", prompts=[[5, 6], WORDS], num_choices=2, **fields)


def output(choice, num_cached_tokens) -> RequestOutput:
    completion = CompletionOutput(index=choice, text="a", token_ids=[7])
    return RequestOutput(
        request_id="r", prompt_token_ids=[5, 6], outputs=[completion], num_cached_tokens=num_cached_tokens
    )


def test_the_latest_output_of_a_prompt_says_what_was_cached():
    """Cached tokens of a choice may come from another choice, whose output arrives later."""
    usage = UsageCounter(settings())
    for prompt, choice, num_cached in ((0, 1, 5), (1, 0, 3), (0, 0, 2)):
        usage.add(PromptOutput(prompt, output(choice, num_cached)))
    usage = usage.usage()
    assert usage["prompt_tokens_details"] == {"cached_tokens": 3 + 2}
    assert usage["completion_tokens"] == 3


def test_the_first_token_of_an_answer_reads_as_it_does_behind_its_prompt():
    """A space before the first word belongs to the text only where something stands before it."""
    places = [{token_id: Logprob(-1.0, 1)} for token_id in WORDS]
    behind = settings().completion_logprobs(2, WORDING).format(WORDS, places)
    echoed = settings(echoed_texts=["", ""]).completion_logprobs(2, WORDING).format(WORDS, places)
    assert behind["tokens"] == echoed["tokens"]
    assert [ours - theirs for ours, theirs in zip(behind["text_offset"], echoed["text_offset"], strict=True)][:2] == [
        0,
        1,
    ]

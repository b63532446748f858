"""`use_beam_search` of completions and chat completions, over a real engine."""

import asyncio
from dataclasses import dataclass

import httpx
import pytest

from rayinfer import LLM, BeamSearchParams
from rayinfer.errors import QueueFull
from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.servers.app import ServedModel, build_app
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from support.fakes.fake_generator import FakeGenerator
from support.tiny_models.tiny_checkpoints import make_tiny_llama, save_tokenizer

PROMPT = [5, 6, 7, 8]


@dataclass(kw_only=True)
class LLMGenerator(FakeGenerator):
    """Generator that an engine answers for, one request at a time."""

    llm: LLM
    delay_s: float = 0.0
    fails_at: int | None = None  # the request that is refused

    async def generate(self, request):
        """Compute the whole answer."""
        self.requests.append(request)
        if len(self.requests) == self.fails_at:
            raise QueueFull("the queue is full", retry_after_s=1.0)
        await asyncio.sleep(self.delay_s)
        (output,) = self.llm.generate([list(request.prompt_token_ids)], request.sampling_params, use_tqdm=False)
        yield output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = make_tiny_llama(tmp_path_factory.mktemp("llama"), tie=False)
    save_tokenizer(folder, 384)
    return folder


@pytest.fixture(scope="module")
def llm(folder):
    with LLM(str(folder), dtype="float32", num_kv_blocks=64) as llm:
        yield llm


@pytest.fixture
def generator(llm):
    return LLMGenerator(llm=llm, max_model_len=llm.description.max_model_len, default_sampling_params={"top_p": 0.5})


def client_of(generator, folder, **settings):
    model = ServedModel(
        name="tiny",
        generator=generator,
        tokenizer=Tokenizer.from_folder(folder),
        chat_template=ChatTemplate.from_folder(folder),
        created=1,
    )
    app = build_app({"tiny": model}, ServiceMetrics(), **settings)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://service")


@pytest.fixture
async def client(generator, folder):
    async with client_of(generator, folder) as client:
        yield client


async def test_a_completion_has_the_sequences_of_the_engine(client, generator, llm):
    body = {"prompt": [PROMPT, [9, 9]], "n": 3, "use_beam_search": True, "length_penalty": 0.5, "max_tokens": 6}
    response = await client.post(
        "/v1/completions", json={**body, "ignore_eos": True, "logprobs": 2, "return_token_ids": True}
    )
    assert response.status_code == 200, response.text
    answer = response.json()
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=0.5, ignore_eos=True)
    expected = [choice for each in llm.beam_search([PROMPT, [9, 9]], params, use_tqdm=False) for choice in each.outputs]
    assert [each["index"] for each in answer["choices"]] == list(range(6))
    assert [each["token_ids"] for each in answer["choices"]] == [each.token_ids for each in expected]
    assert [each["text"] for each in answer["choices"]] == [each.text for each in expected]
    assert answer["usage"]["completion_tokens"] == 36
    own = [
        tokens[token_id].logprob for tokens, token_id in zip(expected[1].logprobs, expected[1].token_ids, strict=True)
    ]
    assert answer["choices"][1]["logprobs"]["token_logprobs"] == pytest.approx(own, abs=1e-6)
    assert all(len(top) in (2, 3) for top in answer["choices"][1]["logprobs"]["top_logprobs"])
    assert len({each.request_id for each in generator.requests}) == len(generator.requests)


async def test_a_conversation_is_searched(client):
    body = {"messages": [{"role": "user", "content": "hi"}], "n": 2, "use_beam_search": True, "max_tokens": 4}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    contents = [choice["message"]["content"] for choice in response.json()["choices"]]
    assert len(contents) == 2
    assert contents[0] != contents[1]


async def test_an_engine_that_refuses_a_step_ends_the_search(client, generator):
    generator.fails_at = 5
    body = {"prompt": PROMPT, "n": 2, "use_beam_search": True, "max_tokens": 8, "ignore_eos": True}
    response = await client.post("/v1/completions", json=body)
    assert response.status_code in (429, 503)
    assert response.headers["Retry-After"]


@pytest.mark.parametrize(("request_timeout_s", "status"), [(0.3, 504), (None, 200)])
async def test_the_time_limit_is_that_of_the_whole_search(generator, folder, request_timeout_s, status):
    generator.delay_s = 0.02
    body = {"prompt": PROMPT, "n": 2, "use_beam_search": True, "max_tokens": 40, "ignore_eos": True}
    async with client_of(generator, folder, request_timeout_s=request_timeout_s) as client:
        response = await client.post("/v1/completions", json=body)
    assert response.status_code == status, response.text
    limits = [each.timeout_s for each in generator.requests]
    if request_timeout_s is None:
        assert set(limits) == {None}
    else:
        assert limits == sorted(limits, reverse=True)
        assert limits[-1] < limits[0] <= request_timeout_s


@pytest.mark.parametrize(
    ("limits", "field"), [({"max_beams": 5}, "n"), ({"max_beam_tokens": 17}, "use_beam_search"), ({}, None)]
)
async def test_sequences_and_their_prompts_are_bounded(generator, folder, limits, field):
    body = {"prompt": [PROMPT, [9, 9]], "n": 3, "use_beam_search": True, "max_tokens": 2}  # 6 sequences, 18 tokens
    async with client_of(generator, folder, request_limits=RequestLimits(**limits)) as client:
        response = await client.post("/v1/completions", json=body)
    if field is None:
        assert response.status_code == 200, response.text
        return
    assert response.status_code == 400
    assert response.json()["error"]["param"] == field
    assert generator.requests == []

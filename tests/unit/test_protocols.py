import pickle

from rayinfer.protocols import GenerationRequest, ModelDescription, ServiceStatus
from rayinfer.sampling_params import SamplingParams


def test_a_request_survives_the_way_to_another_process():
    request = GenerationRequest(
        request_id="r/1",
        prompt_token_ids=[1, 2],
        output_token_ids=[3],
        sampling_params=SamplingParams(stop=["x"], seed=4),
        choice=1,
        priority=-3,
        timeout_s=2.5,
        tenant="t",
        cache_salt="s",
        adapter="a",
        attempt=7,
    )
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_request_is_by_default_plain_and_at_its_beginning():
    request = GenerationRequest(request_id="r", prompt_token_ids=[1], sampling_params=SamplingParams())
    assert (request.output_token_ids, request.choice, request.priority, request.timeout_s) == ([], 0, 0, None)
    assert (request.tenant, request.cache_salt, request.adapter, request.attempt) == ("", "", None, 0)


def test_descriptions_and_states_survive_the_way_too():
    description = ModelDescription(name="m", max_model_len=9, vocab_size=3, created=1)
    status = ServiceStatus(ready=False, reason="no engine")
    assert pickle.loads(pickle.dumps((description, status))) == (description, status)

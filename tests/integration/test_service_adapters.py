"""LoRA adapters of a running service: chosen by name, equal to those of `LLM`, loaded and unloaded at any router."""

import pytest

from rayinfer import LLM, LoRARequest, SamplingParams
from support.services.polling import wait_until
from support.tiny_models.tiny_adapters import make_adapter

PROMPT = [5, 6, 7, 8, 200, 31]
BODY = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
LORA = {"enable_lora": True, "max_loras": 2, "num_kv_blocks": 128, "dtype": "float32"}


@pytest.fixture(scope="module")
def folders(tiny_models, tmp_path_factory):
    root = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(root / name, tiny_models["tiny"], seed=seed) for seed, name in enumerate("ab")}


@pytest.fixture(scope="module")
def expected(tiny_models, folders):
    """What the model answers with each adapter, and without any."""
    params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
    chosen = [None, *(LoRARequest(name, 1, str(folder)) for name, folder in folders.items())]
    with LLM(str(tiny_models["tiny"]), **LORA) as llm:
        outputs = llm.generate([PROMPT] * 3, params, lora_request=chosen, use_tqdm=False)
    answers = [output.outputs[0].token_ids for output in outputs]
    assert len(set(map(tuple, answers))) == 3
    return dict(zip(("tiny", *folders), answers, strict=True))


def test_adapters_answer_by_name_until_they_are_unloaded(deploy, tiny_models, folders, expected):
    model = {"name": "tiny", "model": str(tiny_models["tiny"]), "lora_modules": {"a": str(folders["a"])}, **LORA}
    with deploy("adapters", [model], num_routers=2, lora_roots=[str(folders["b"].parent)]) as service:

        def answer(name):
            response = service.http.post("/v1/completions", json={**BODY, "model": name})
            return response.json()["choices"][0]["token_ids"] if response.status_code == 200 else response.status_code

        assert [answer(name) for name in ("tiny", "a", "b")] == [expected["tiny"], expected["a"], 404]
        loaded = service.http.post("/v1/load_lora_adapter", json={"lora_name": "b", "lora_path": str(folders["b"])})
        assert loaded.status_code == 200, loaded.text
        for _ in range(8):  # at both routers
            assert {name: answer(name) for name in expected} == expected
        listed = {each["id"]: each["parent"] for each in service.http.get("/v1/models").json()["data"]}
        assert listed == {"tiny": None, "a": "tiny", "b": "tiny"}
        for name in ("a", "b"):
            unloaded = service.http.post("/v1/unload_lora_adapter", json={"lora_name": name})
            assert unloaded.status_code == 200, unloaded.text
        wait_until(lambda: {answer(name) for name in ("a", "b")} == {404})
        assert answer("tiny") == expected["tiny"]

"""Report of an engine on the adapters that it has in memory."""

from pathlib import Path

from rayinfer import LLM, LoRARequest, SamplingParams
from rayinfer.kv_cache.adapter_id import folder_digest
from support.tiny_models.tiny_adapters import make_adapter

PARAMS = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)


def test_the_engine_reports_the_adapters_in_memory_the_one_used_last_at_the_end(folder, tmp_path):
    paths = [make_adapter(tmp_path / str(number), folder, seed=number) for number in range(3)]
    adapters = [LoRARequest(str(number), number, str(path)) for number, path in enumerate(paths)]
    with LLM(str(folder), block_size=8, num_kv_blocks=96, enable_lora=True, max_loras=2) as llm:
        assert llm.stats.adapters_in_memory == []
        for adapter in (*adapters, adapters[1]):
            llm.generate([[9, 8, 7]], PARAMS, lora_request=adapter, use_tqdm=False)
        assert llm.stats.adapters_in_memory == [folder_digest(Path(paths[number])) for number in (2, 1)]

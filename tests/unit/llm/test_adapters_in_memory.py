"""Report of an engine on the adapters that it has in memory."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from rayinfer import LLM, LoRARequest, SamplingParams
from rayinfer.errors import AdapterRefused
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


def test_the_engine_counts_loads_evictions_and_bytes_and_names_what_its_requests_have(folder, tmp_path):
    paths = [make_adapter(tmp_path / str(number), folder, seed=number) for number in range(3)]
    a, b, c = (
        LoRARequest(name, number, str(path)) for number, (name, path) in enumerate(zip("abc", paths, strict=True))
    )
    num_bytes = sum(tensor.nbytes for tensor in load_file(paths[0] / "adapter_model.safetensors").values())
    with LLM(str(folder), block_size=8, num_kv_blocks=96, enable_lora=True, max_loras=1, max_cpu_loras=2) as llm:
        for adapter in (a, a, b):
            llm.add_request([9, 8, 7], PARAMS, lora_request=adapter)
        llm.step()
        stats = llm.stats.adapters
        assert (stats.max_loras, stats.running, stats.waiting) == (1, ["a"], ["b"])
        while llm.has_unfinished_requests():
            llm.step()
        llm.generate([[9, 8, 7]], PARAMS, lora_request=c, use_tqdm=False)
        with pytest.raises(AdapterRefused):
            llm.generate([[9]], PARAMS, lora_request=LoRARequest("d", 4, str(tmp_path)), use_tqdm=False)
        stats = llm.stats.adapters
    assert (stats.running, stats.waiting) == ([], [])
    assert (stats.num_resident, stats.resident_bytes, stats.slot_bytes) == (2, 2 * num_bytes, num_bytes)
    assert (stats.loads_total, stats.evictions_total, stats.failed_loads_total) == (3, 1, 1)
    assert stats.load_seconds_total > 0


def adapters_of_several_sizes(folder, tmp_path):
    paths = [make_adapter(tmp_path / str(rank), folder, rank=rank, seed=rank) for rank in (1, 2, 4)]
    sizes = [sum(each.nbytes for each in load_file(path / "adapter_model.safetensors").values()) for path in paths]
    return [LoRARequest(str(number), number, str(path)) for number, path in enumerate(paths)], sizes


def test_adapters_leave_host_memory_by_their_bytes_and_slots_by_theirs(folder, tmp_path):
    adapters, sizes = adapters_of_several_sizes(folder, tmp_path)
    settings = {"block_size": 8, "num_kv_blocks": 96, "enable_lora": True, "dtype": "float32"}
    with LLM(str(folder), **settings, max_loras=1, max_cpu_lora_bytes=sizes[2] + sizes[0]) as llm:
        seen = []
        for number in (0, 1, 0, 2, 1):
            llm.generate([[9, 8, 7]], PARAMS, lora_request=adapters[number], use_tqdm=False)
            stats = llm.stats.adapters
            seen.append((stats.resident_bytes, stats.loads_total, stats.evictions_total))
    first, second, third = sizes
    assert seen == [
        (first, 1, 0),
        (first + second, 2, 0),
        (first + second, 2, 0),
        (first + third, 3, 1),
        (second, 4, 3),
    ]
    with LLM(str(folder), **settings, max_lora_bytes=sizes[0] + sizes[1]) as llm:
        for number in (0, 1, 1, 0):
            llm.add_request([9, 8, 7], PARAMS, lora_request=adapters[number])
        llm.step()
        assert llm.stats.adapters.slot_bytes == first + second
        with pytest.raises(AdapterRefused, match=f"{third} bytes in float32 are above max_lora_bytes"):
            llm.generate([[9]], PARAMS, lora_request=adapters[2], use_tqdm=False)
        while llm.has_unfinished_requests():
            llm.step()


def test_a_request_waits_for_the_bytes_of_its_adapter_and_then_empties_the_slots_it_needs(folder, tmp_path):
    adapters, sizes = adapters_of_several_sizes(folder, tmp_path)
    settings = {"block_size": 8, "num_kv_blocks": 96, "enable_lora": True, "dtype": "float32"}
    with LLM(str(folder), **settings, max_lora_bytes=sizes[2]) as llm:
        for adapter in adapters:
            llm.add_request([9, 8, 7], PARAMS, lora_request=adapter)
        llm.step()
        stats = llm.stats.adapters
        assert (stats.running, stats.waiting, stats.slot_bytes) == (["0", "1"], ["2"], sizes[0] + sizes[1])
        while llm.has_unfinished_requests():
            llm.step()
        assert llm.stats.adapters.slot_bytes == sizes[2]


def test_adapters_above_the_limit_leave_host_memory_once_their_requests_have_ended(folder, tmp_path):
    adapters, sizes = adapters_of_several_sizes(folder, tmp_path)
    settings = {"block_size": 8, "num_kv_blocks": 96, "enable_lora": True, "dtype": "float32"}
    with LLM(str(folder), **settings, max_cpu_lora_bytes=sizes[2]) as llm:
        for adapter in adapters:
            llm.add_request([9, 8, 7], PARAMS, lora_request=adapter)
        llm.step()
        assert llm.stats.adapters.resident_bytes == sum(sizes)
        while llm.has_unfinished_requests():
            llm.step()
        assert llm.stats.adapters.resident_bytes == sizes[2]
        names = [llm.add_request([9, 8, 7], PARAMS, lora_request=adapter) for adapter in adapters]
        llm.step()
        for name in names:
            llm.abort(name)
        assert llm.stats.adapters.resident_bytes <= sizes[2]
    with (
        LLM(str(folder), **settings, max_cpu_lora_bytes=sizes[0]) as llm,
        pytest.raises(AdapterRefused, match=f"tensors of {sizes[2]} bytes are above max_cpu_lora_bytes {sizes[0]}"),
    ):
        llm.generate([[9]], PARAMS, lora_request=adapters[2], use_tqdm=False)


def test_slots_hold_nothing_after_the_model_was_freed(folder, tmp_path):
    adapters, _ = adapters_of_several_sizes(folder, tmp_path)
    with LLM(str(folder), block_size=8, num_kv_blocks=96, enable_lora=True) as llm:
        llm.generate([[9]], PARAMS, lora_request=adapters[0], use_tqdm=False)
        assert llm.stats.adapters.slot_bytes > 0
        llm.sleep(2)
        assert llm.stats.adapters.slot_bytes == 0
        llm.wake()
        llm.generate([[9]], PARAMS, lora_request=adapters[0], use_tqdm=False)
        assert llm.stats.adapters.slot_bytes > 0

"""Published matrices that a decoder keeps in groups, beside the same ones dequantized."""

import pytest
import torch
from safetensors.torch import load_file

from rayinfer import LLM, LoRARequest, SamplingParams
from rayinfer.layers.matrix import Matrix
from rayinfer.models.loader import load_decoder
from rayinfer.models.quantized.quantized_checkpoint import measure_conversion
from rayinfer.optimization.packed_cache import PackedCache
from rayinfer.optimization.packed_weights import load_packed_decoder
from rayinfer_kernels import ops
from support.fakes.thread_ranks import run_threads
from support.golden.decoder_runs import logits_of
from support.services.shared_runs import answer_of
from support.tiny_models.published_cases import FORMATS
from support.tiny_models.published_formats import make_published_llama
from support.tiny_models.tiny_adapters import make_adapter, merge_adapter
from support.tiny_models.tiny_checkpoints import save_weights

CPU = torch.device("cpu")
KEPT = {
    "gptq": "INT4_GROUPS",
    "gptq symmetric": "INT4_GROUPS",
    "gptq 8 bits": "INT8_GROUPS",
    "gptq a scale per output": "INT4_GROUPS",
    "awq": "INT4_GROUPS",
    "fp8 blocks": "FLOAT8_GROUPS",
    "compressed with zero points": "INT4_GROUPS",
    "compressed int-quantized": "INT8_GROUPS",
    "compressed mxfp4": "TABLE4_GROUPS",
    "nf4": "TABLE4_GROUPS",
    "nf4 nested": "TABLE4_GROUPS",
}
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS = {"num_kv_blocks": 32, "block_size": 8}

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def load(folder, cache, dtype=torch.float32, shard=None, worth_keeping_bytes=0):
    settings = {} if shard is None else {"shard": shard}
    return load_packed_decoder(
        folder, dtype, CPU, quantization=None, cache=PackedCache(cache), worth_keeping_bytes=worth_keeping_bytes,
        **settings,
    )  # fmt: skip


def formats_of(decoder):
    layers = [module for name, module in decoder.named_modules() if isinstance(module, Matrix) and ".layers." in name]
    return {module.packed.format.name for module in layers}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", KEPT)
def test_kept_groups_compute_as_the_dequantized_checkpoint_does(name, dtype, tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS[name])
    kept, plain = load(folder, tmp_path / "packed", dtype), load(folder / "plain", tmp_path / "packed", dtype)
    assert formats_of(kept) == {KEPT[name]}
    close = {"atol": 1e-4, "rtol": 1e-4} if dtype == torch.float32 else {"atol": 0.1, "rtol": 0.02}
    torch.testing.assert_close(logits_of(kept, dtype), logits_of(plain, dtype), **close)
    again = load(folder, tmp_path / "packed", dtype)  # from the cache
    assert torch.equal(logits_of(again, dtype), logits_of(kept, dtype))


@pytest.mark.parametrize("name", ["gptq desc_act", "gptq some layers skipped", "gptq with a quantized head"])
def test_what_cannot_be_kept_is_dequantized(name, tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS[name])
    kept, plain = (load(each, tmp_path / "packed") for each in (folder, folder / "plain"))
    torch.testing.assert_close(logits_of(kept), logits_of(plain), atol=1e-4, rtol=1e-4)
    float32, int4 = ops.WeightFormat.FLOAT32.name, ops.WeightFormat.INT4_GROUPS.name
    wanted = {
        "gptq desc_act": {float32},  # each input has a group of its own
        "gptq some layers skipped": {float32, int4},
        "gptq with a quantized head": {int4},
    }
    assert formats_of(kept) == wanted[name]
    is_head_quantized = kept.lm_head.packed.format is ops.WeightFormat.INT4_GROUPS
    assert is_head_quantized == (name == "gptq with a quantized head")


def test_matrices_of_different_tables_are_not_stacked(tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS["nf4"])
    for each, tensor in ((folder, "k_proj.weight.quant_map"), (folder / "plain", "k_proj.weight")):
        tensors = load_file(each / "model.safetensors")
        for layer in range(2):
            tensors[f"model.layers.{layer}.self_attn.{tensor}"] *= 0.5
        save_weights(each, tensors)
    kept, plain = (load(each, tmp_path / "packed") for each in (folder, folder / "plain"))
    torch.testing.assert_close(logits_of(kept), logits_of(plain), atol=1e-4, rtol=1e-4)
    assert formats_of(kept) == {"FLOAT32", "TABLE4_GROUPS"}


def exact(output):
    (choice,) = output.outputs
    return choice.token_ids, [
        place[token].logprob for token, place in zip(choice.token_ids, choice.logprobs, strict=True)
    ]


@pytest.mark.parametrize("name", ["gptq", "awq", "nf4"])
def test_an_adapter_of_a_quantized_model_is_as_merged_into_its_weights(name, tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS[name])
    adapter = make_adapter(tmp_path / "adapter", folder / "plain")
    merged = merge_adapter(tmp_path / "merged", folder / "plain", adapter)
    prompts, lora_requests = [[9, 8, 7, 20, 6], [31, 5] * 20], [None] * 2 + [LoRARequest("a", 1, str(adapter))] * 2
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True, logprobs=0)
    with LLM(str(folder), dtype="float32", enable_lora=True, **SETTINGS) as llm:
        outputs = llm.generate(prompts * 2, params, lora_request=lora_requests, use_tqdm=False)
    without, adapted = [exact(output) for output in outputs[:2]], [exact(output) for output in outputs[2:]]
    with LLM(str(folder), dtype="float32", **SETTINGS) as llm:
        assert without == [exact(output) for output in llm.generate(prompts, params, use_tqdm=False)]
    with LLM(str(merged), dtype="float32", **SETTINGS) as llm:
        wanted = [exact(output) for output in llm.generate(prompts, params, use_tqdm=False)]
    for (tokens, logprobs), (wanted_tokens, wanted_logprobs) in zip(adapted, wanted, strict=True):
        assert tokens == wanted_tokens
        assert logprobs == pytest.approx(wanted_logprobs, abs=1e-3)
    assert adapted != without


def test_kept_groups_take_less_memory(tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS["gptq"])
    kept, plain = (load(each, tmp_path / "packed") for each in (folder, folder / "plain"))
    sizes = [sum(m.packed.panels.nbytes for m in each.modules() if isinstance(m, Matrix)) for each in (kept, plain)]
    head_bytes = 2 * 384 * 64 * 4
    assert sizes[0] - head_bytes < 0.2 * (sizes[1] - head_bytes)  # 6 bits instead of 32


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("num_ranks", "num_stages"), [(2, 1), (2, 2)])
@pytest.mark.parametrize("name", ["fp8 small blocks", "nf4", "compressed with zero points"])
def test_ranks_and_stages_keep_their_parts(name, num_ranks, num_stages, tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS[name])
    (whole,) = run_threads(1, lambda group: answer_of(folder / "plain", group))

    def load_part(folder, dtype, shard):
        part = load(folder, tmp_path / "packed", dtype, shard)
        assert "FLOAT32" not in formats_of(part)
        return part

    for answer in run_threads(num_ranks, lambda group: answer_of(folder, group, num_stages, load=load_part)):
        torch.testing.assert_close(answer.logits, whole.logits, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("name", ["gptq", "awq", "fp8 blocks", "nf4 nested"])
def test_greedy_answers_are_those_of_the_dequantized_checkpoint(name, tmp_path):
    folder = make_published_llama(tmp_path / "model", FORMATS[name])
    answers = []
    for each in (folder, folder / "plain"):
        with LLM(str(each), dtype="float32", **SETTINGS) as llm:
            outputs = llm.generate(["the quick brown fox", "Once upon"], GREEDY, use_tqdm=False)
            answers.append([output.outputs[0].token_ids for output in outputs])
    assert answers[0] == answers[1]


def test_the_log_counts_what_was_kept(tmp_path, caplog):
    folder = make_published_llama(tmp_path, FORMATS["awq"])
    with caplog.at_level("INFO", "rayinfer"):
        load_decoder(folder, torch.bfloat16, CPU, keeps_quantized=True)
    (line,) = [record.getMessage() for record in caplog.records if "awq" in record.getMessage()]
    assert "awq, 4 bits, groups of 32: 14 matrices, of which 14 are kept as they are and 0 dequantized" in line
    assert line.partition("; ")[2] == measure_conversion(folder, torch.bfloat16).partition("; ")[2]

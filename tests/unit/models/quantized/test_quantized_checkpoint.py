"""Published quantized checkpoints beside the plain ones that they dequantize to, by each format's own definition."""

import json
import logging
from functools import partial

import pytest
import torch
from safetensors.torch import load_file

from rayinfer import LLM, SamplingParams
from rayinfer.errors import ModelLoadError
from rayinfer.models.loader import check_checkpoint, load_decoder
from rayinfer.models.quantized.quantized_checkpoint import measure_conversion
from support.fakes.thread_ranks import run_threads
from support.golden.decoder_runs import logits_of
from support.services.shared_runs import answer_of
from support.tiny_models.published_cases import FORMATS
from support.tiny_models.published_formats import PublishedFormat, compressed, make_published_llama
from support.tiny_models.tiny_checkpoints import change_config, save_weights

CPU = torch.device("cpu")
GREEDY = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
SETTINGS = {"num_kv_blocks": 32, "block_size": 8}


@pytest.mark.parametrize("name", FORMATS)
def test_each_format_is_read_as_it_is_defined(name, tmp_path):
    folder = make_published_llama(tmp_path, FORMATS[name])
    check_checkpoint(folder)
    decoder, plain = (load_decoder(each, torch.float32, CPU) for each in (folder, folder / "plain"))
    for parameter, wanted in plain.named_parameters():
        torch.testing.assert_close(decoder.get_parameter(parameter), wanted, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(logits_of(decoder), logits_of(plain), atol=1e-4, rtol=1e-4)


def tokens_of(folder, dtype="float32"):
    with LLM(str(folder), dtype=dtype, **SETTINGS) as llm:
        outputs = llm.generate(["the quick brown fox", "Once upon"], GREEDY, use_tqdm=False)
        return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("name", ["gptq desc_act", "mxfp4"])
def test_an_engine_answers_as_with_the_plain_checkpoint(name, tmp_path):
    folder = make_published_llama(tmp_path, FORMATS[name])
    assert tokens_of(folder) == tokens_of(folder / "plain")


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("num_ranks", "num_stages"), [(2, 1), (1, 2)])
@pytest.mark.parametrize("name", ["gptq desc_act", "fp8 small blocks"])
def test_ranks_and_stages_read_their_parts(name, num_ranks, num_stages, tmp_path):
    folder = make_published_llama(tmp_path, FORMATS[name])
    (whole,) = run_threads(1, lambda group: answer_of(folder / "plain", group))
    for answer in run_threads(num_ranks, lambda group: answer_of(folder, group, num_stages)):
        torch.testing.assert_close(answer.logits, whole.logits, atol=1e-4, rtol=1e-4)


def test_what_rounding_to_bfloat16_changes_is_logged_once(tmp_path, caplog):
    folder = make_published_llama(tmp_path, FORMATS["gptq"])
    with caplog.at_level(logging.INFO, "rayinfer"):
        load_decoder(folder, torch.bfloat16, CPU)
    (line,) = [record.getMessage() for record in caplog.records if "gptq" in record.getMessage()]
    assert "gptq, 4 bits, groups of 32: 14 matrices, of which 0 are kept as they are and 14 dequantized" in line
    stored, exact = load_decoder(folder, torch.bfloat16, CPU), load_decoder(folder / "plain", torch.float32, CPU)
    change = weights = 0.0
    for name, wanted in exact.named_parameters():
        if ".layers." in name and name.endswith("proj.weight"):
            change += float((stored.get_parameter(name).float() - wanted).square().sum())
            weights += float(wanted.square().sum())
    assert f"{(change / weights) ** 0.5:.1e}" in line
    assert line.partition("; ")[2] == measure_conversion(folder, torch.bfloat16).partition("; ")[2]


def test_numbers_that_bfloat16_holds_are_converted_without_an_error(tmp_path):
    folder = make_published_llama(tmp_path, FORMATS["mxfp4"])
    assert measure_conversion(folder, torch.bfloat16).endswith("as bfloat16 they have no error")
    assert measure_conversion(folder / "plain", torch.bfloat16) is None


GPTQ, AWQ, FP8, BNB = (FORMATS[name].config for name in ("gptq", "awq", "fp8 blocks", "nf4"))
PACKED = FORMATS["compressed pack-quantized"].config


def blocks(structure):
    return compressed("float-quantized", type="float", strategy="block", block_structure=structure)


def activations(**scheme):
    config = compressed("int-quantized")
    config["config_groups"]["group_0"]["input_activations"] = scheme
    return config


def targets(value):
    config = compressed("pack-quantized", num_bits=4)
    config["config_groups"]["group_0"]["targets"] = value
    return config


REFUSED = {
    "gptq of 3 bits": (GPTQ | {"bits": 3}, "gptq with bits 3 is not supported"),
    "gptq of bits that are no whole number": (GPTQ | {"bits": 4.0}, "gptq with bits 4.0"),
    "gptq of two versions": (
        GPTQ | {"checkpoint_format": "gptq", "format": "gptq_v2"},
        "checkpoint_format that is not",
    ),
    "gptq for marlin": (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin'"),
    "gptq with settings by layer": (GPTQ | {"dynamic": {"-:lm_head": {}}}, "dynamic"),
    "awq for other kernels": (AWQ | {"version": "gemv"}, "awq with version 'gemv' is not supported"),
    "awq of 3 bits": (AWQ | {"bits": 3}, "awq with bits 3"),
    "fp8 with static scales": (FP8 | {"activation_scheme": "static"}, "activation_scheme 'static'"),
    "fp8 as e5m2": (FP8 | {"fmt": "e5m2"}, "fmt 'e5m2'"),
    "int8 of bitsandbytes": (BNB | {"load_in_4bit": False, "load_in_8bit": True}, "load_in_8bit"),
    "other storage": (BNB | {"bnb_4bit_quant_storage": "bfloat16"}, "bnb_4bit_quant_storage 'bfloat16'"),
    "2:4 sparsity": (PACKED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    "marlin-24": (PACKED | {"format": "marlin-24"}, "format 'marlin-24'"),
    "nvfp4": (PACKED | {"format": "nvfp4-pack-quantized"}, "format 'nvfp4-pack-quantized'"),
    "a cache scheme": (PACKED | {"kv_cache_scheme": {"num_bits": 8}}, "kv_cache_scheme"),
    "static activations": (activations(num_bits=8, dynamic=False), "static input_activations"),
    "2 bits": (compressed("pack-quantized", num_bits=2), "weights of 2 bits"),
    "bits that are no whole number": (compressed("pack-quantized", num_bits=4.0), "weights of 4.0 bits (num_bits)"),
    "blocks that are words": (blocks(["a", "b"]), "block_structure ['a', 'b']"),
    "blocks that are no whole numbers": (blocks([128.5, 128]), "block_structure [128.5, 128]"),
    "blocks of nothing": (blocks([0, 0]), "block_structure [0, 0]"),
    "targets that are no list": (targets("Linear"), "targets of group_0 'Linear'"),
    "a pattern that is wrong": (targets(["re:("]), "targets of group_0 're:('"),
    "an ignored number": (PACKED | {"ignore": [3]}, "ignore [3]"),
    "another method": ({"quant_method": "aqlm"}, "the method 'aqlm' is not supported, known: awq, bitsandbytes"),
}


@pytest.fixture(scope="module")
def gptq_folder(tmp_path_factory):
    return make_published_llama(tmp_path_factory.mktemp("gptq"), FORMATS["gptq"])


@pytest.mark.parametrize("name", REFUSED)
def test_a_variant_that_is_not_read_is_refused_by_name(name, gptq_folder):
    config, message = REFUSED[name]
    folder = change_config(gptq_folder, quantization_config=config)
    with pytest.raises(ModelLoadError) as caught:
        check_checkpoint(folder)
    assert message in str(caught.value)
    assert str(folder / "config.json") in str(caught.value)


def test_dynamic_scales_of_activations_are_left_to_the_engine(tmp_path):
    published = PublishedFormat(activations(num_bits=8, dynamic=True), FORMATS["compressed int-quantized"].write)
    check_checkpoint(make_published_llama(tmp_path, published))


LAYER = "model.layers.1.mlp.down_proj"
STATE = f"{LAYER}.weight.quant_state.bitsandbytes__nf4"


def change_state(tensors, **fields):
    state = json.loads(bytes(tensors[STATE].tolist())) | fields
    tensors[STATE] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)


DAMAGES = {
    "gptq lacks scales": ("gptq", lambda tensors: tensors.pop(f"{LAYER}.scales"), f"{LAYER}.scales"),
    "gptq has too few scales": (
        "gptq", lambda tensors: tensors.update({f"{LAYER}.scales": torch.zeros(2, 64).half()}),
        rf"{LAYER}.scales has shape (2, 64), expected (5, 64)",
    ),
    "gptq has zeros of another type": (
        "gptq", lambda tensors: tensors.update({f"{LAYER}.qzeros": tensors[f"{LAYER}.qzeros"].float()}),
        f"{LAYER}.qzeros has dtype torch.float32, expected int32",
    ),
    "gptq names a group that is not there": (
        "gptq desc_act", lambda tensors: tensors[f"{LAYER}.g_idx"].fill_(9), f"{LAYER}.g_idx names groups 9 to 9",
    ),
    "awq lacks zeros": ("awq", lambda tensors: tensors.pop(f"{LAYER}.qzeros"), f"{LAYER}.qzeros"),
    "fp8 lacks scales": ("fp8 blocks", lambda tensors: tensors.pop(f"{LAYER}.weight_scale_inv"), "weight_scale_inv"),
    "fp8 has too few scales": (
        "fp8 blocks", lambda tensors: tensors.update({f"{LAYER}.weight_scale_inv": torch.ones(1, 1)}),
        f"{LAYER}.weight_scale_inv has shape (1, 1), expected (1, 2)",
    ),
    "nf4 has a broken state": (
        "nf4", lambda tensors: tensors[f"{LAYER}.weight.quant_state.bitsandbytes__nf4"].fill_(65), "no state of",
    ),
    "nf4 has a nested state": (
        "nf4", lambda tensors: tensors.update({STATE: torch.tensor(list(b"[" * 100_000), dtype=torch.uint8)}),
        f"tensor {STATE} is no state of",
    ),
    "nf4 has a state of null": (
        "nf4", lambda tensors: tensors.update({STATE: torch.tensor(list(b"null"), dtype=torch.uint8)}),
        f"tensor {STATE} is no state of",
    ),
    "nf4 lacks the offset of its scales": (
        "nf4 nested", lambda tensors: change_state(tensors, nested_offset=None),
        f"tensor {STATE} has nested_offset None",
    ),
    "nf4 has no finite offset": (
        "nf4 nested", lambda tensors: change_state(tensors, nested_offset=1e999),
        f"tensor {STATE} has nested_offset inf",
    ),
    "nf4 has too few scales": (
        "nf4", lambda tensors: tensors.update({f"{LAYER}.weight.absmax": torch.ones(3)}), f"{LAYER}.weight.absmax has",
    ),
    "a shape of another layer": (
        "compressed pack-quantized", lambda tensors: tensors[f"{LAYER}.weight_shape"].fill_(8),
        f"{LAYER}.weight has shape (8, 8), expected (64, 160)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_tensor_is_named(name, tmp_path):
    format_name, damage, message = DAMAGES[name]
    folder = make_published_llama(tmp_path, FORMATS[format_name])
    tensors = load_file(folder / "model.safetensors")
    damage(tensors)
    save_weights(folder, tensors)
    with pytest.raises(ModelLoadError) as caught:
        load_decoder(folder, torch.float32, CPU)
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


def test_integers_without_their_format_are_refused(tmp_path):
    folder = make_published_llama(tmp_path, FORMATS["compressed int-quantized"])
    change_config(folder, without=("quantization_config",))
    with pytest.raises(ModelLoadError, match="expected floating point"):
        check_checkpoint(folder)


def test_quantized_again_it_is_near_the_plain_checkpoint(tmp_path):
    folder = make_published_llama(tmp_path, FORMATS["awq"])
    load = partial(LLM, dtype="float32", quantization="int8", allow_inaccurate_quantization=True, **SETTINGS)
    answers = []
    for each in (folder, folder / "plain"):
        with load(str(each)) as llm:
            (output,) = llm.generate(["the quick"], GREEDY, use_tqdm=False)
            answers.append(output.outputs[0].token_ids)
    assert answers[0] == answers[1]

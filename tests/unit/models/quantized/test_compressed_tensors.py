"""compressed-tensors checkpoints with several groups of layers, and tensors that contradict their group."""

import copy

import pytest
import torch
from safetensors.torch import load_file

from rayinfer.errors import ModelLoadError
from rayinfer.models.loader import load_decoder
from rayinfer.models.quantized.quantized_checkpoint import open_checkpoint
from support.tiny_models.published_cases import FORMATS
from support.tiny_models.published_formats import Published, PublishedFormat, make_published_llama, write_packed
from support.tiny_models.tiny_checkpoints import change_config, save_weights

LAYER = "model.layers.1.mlp.down_proj"
ELSEWHERE, EVERYWHERE = ["re:.*nothing_here"], ["Linear"]


def config_of(name, groups, ignore=("lm_head",)):
    """The configuration of a format with these groups, each of which changes the targets and weights of the first."""
    config = copy.deepcopy(dict(FORMATS[name].config))
    given = config["config_groups"]["group_0"]
    config["config_groups"] = {
        f"group_{index}": given | {"targets": targets, "weights": given["weights"] | weights}
        for index, (targets, weights) in enumerate(groups)
    }
    return config | {"ignore": list(ignore)}


def check_weights(folder):
    quantized, plain = open_checkpoint(folder), open_checkpoint(folder / "plain")
    assert quantized.tensor_names == plain.tensor_names
    for name in plain.tensor_names:
        torch.testing.assert_close(quantized.read(name), plain.read(name), atol=1e-6, rtol=1e-6)


def check_refused(folder, message):
    with pytest.raises(ModelLoadError) as caught:
        load_decoder(folder, torch.float32, torch.device("cpu"))
    assert message in str(caught.value)
    assert str(folder) in str(caught.value)


SYMMETRIC, ASYMMETRIC = {"symmetric": True}, {"symmetric": False}
BLOCKS = {"strategy": "block", "block_structure": [128, 128]}
# What the file has, and two groups of the same bits, the first of which is that of no layer.
TWO_GROUPS = {
    "symmetric first": ("compressed with zero points", (ELSEWHERE, SYMMETRIC), (EVERYWHERE, ASYMMETRIC)),
    "unordered first": ("compressed actorder", (ELSEWHERE, {"actorder": None}), (EVERYWHERE, {"actorder": "group"})),
    "blocks first": ("compressed float-quantized", (ELSEWHERE, BLOCKS), (EVERYWHERE, {})),
    "a class behind a pattern": (
        "compressed with zero points", (EVERYWHERE, SYMMETRIC), (["re:.*(self_attn|mlp)"], ASYMMETRIC),
    ),
    "a pattern behind a name": (
        "compressed with zero points",
        (["re:.*"], SYMMETRIC),
        ([f"model.layers.{layer}.{part}" for layer in range(2) for part in (
            *(f"self_attn.{name}_proj" for name in "qkvo"), *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
        )], ASYMMETRIC),
    ),
    "a single group of other names": ("compressed with zero points", (ELSEWHERE, ASYMMETRIC)),
}  # fmt: skip


@pytest.mark.parametrize("name", TWO_GROUPS)
def test_a_layer_has_the_group_whose_targets_name_it(name, tmp_path):
    format_name, *groups = TWO_GROUPS[name]
    folder = make_published_llama(tmp_path, FORMATS[format_name])
    check_weights(change_config(folder, quantization_config=config_of(format_name, groups)))


def test_layers_of_different_groups_are_read_each_by_its_own(tmp_path):
    def write(weight):  # of the 160 inputs of down_proj alone, with zero points
        return write_packed(weight, is_symmetric=weight.shape[1] != 160)

    groups = [(EVERYWHERE, SYMMETRIC), (["re:.*down_proj$"], ASYMMETRIC)]
    config = config_of("compressed with zero points", groups)
    check_weights(make_published_llama(tmp_path, PublishedFormat(config, write)))


CONTRADICTIONS = {
    "zero points of a symmetric group": (
        "compressed with zero points", SYMMETRIC, ("lm_head",), "weight_zero_point has zero points, but group_0",
    ),
    "an order without actorder": (
        "compressed actorder", {"actorder": None}, ("lm_head",), "weight_g_idx orders the inputs, but group_0",
    ),
    "an ignored layer": (
        "compressed with zero points", {}, ("lm_head", f"re:.*{LAYER}"),
        f"tensor {LAYER}.weight_packed is quantized, but `ignore` in config.json names its layer",
    ),
    "other bits": (
        "compressed pack-quantized", {"num_bits": 8}, (), "inputs of 8 bits (group_0)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_a_tensor_that_contradicts_its_group_is_named(name, tmp_path):
    format_name, weights, ignore, message = CONTRADICTIONS[name]
    folder = make_published_llama(tmp_path, FORMATS[format_name])
    config = config_of(format_name, [(EVERYWHERE, weights)], ignore)
    check_refused(change_config(folder, quantization_config=config), message)


def test_a_layer_of_no_group_is_refused_where_there_are_several(tmp_path):
    folder = make_published_llama(tmp_path, FORMATS["compressed pack-quantized"])
    config = config_of("compressed pack-quantized", [(ELSEWHERE, {}), (["re:.*self_attn", "re:.*(gate|up)_proj"], {})])
    message = "down_proj.weight_packed is quantized, but no `targets` of config_groups name its layer"
    check_refused(change_config(folder, quantization_config=config), message)


@pytest.mark.parametrize("name", ["compressed int-quantized", "compressed float-quantized"])
def test_zero_points_of_eight_bits_are_refused_unless_they_are_zero(name, tmp_path):
    folder = make_published_llama(tmp_path, FORMATS[name])
    tensors = load_file(folder / "model.safetensors")
    zeros = torch.zeros_like(tensors[f"{LAYER}.weight_scale"], dtype=torch.int8)
    save_weights(folder, tensors | {f"{LAYER}.weight_zero_point": zeros})
    check_weights(folder)
    save_weights(folder, tensors | {f"{LAYER}.weight_zero_point": zeros + 1})
    check_refused(
        folder, f"tensor {LAYER}.weight_zero_point has zero points, but group_0 of config_groups is symmetric"
    )


def write_ordered_int8(weight):
    """Write int8 in two groups of inputs, every other one of which is in the second."""
    groups = torch.arange(weight.shape[1], dtype=torch.int32) % 2
    scales = torch.tensor([0.01, 0.03]).expand(len(weight), 2).contiguous()
    spread = scales[:, groups.long()]
    codes = (weight / spread).round().clamp(-128, 127).to(torch.int8)
    return Published({"weight": codes, "weight_scale": scales, "weight_g_idx": groups}, codes.float() * spread)


def test_eight_bits_have_an_order_of_the_inputs_too(tmp_path):
    weights = {"strategy": "group", "actorder": "group"}
    config = config_of("compressed int-quantized", [(EVERYWHERE, weights)])
    check_weights(make_published_llama(tmp_path, PublishedFormat(config, write_ordered_int8)))

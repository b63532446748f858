"""PEFT folders: what is read, and what is refused with the name of the tensor."""

import json
import os
import shutil
import struct
import time

import pytest
import torch
from safetensors.torch import load_file

from rayinfer.adapters.adapter import AdapterLimits, read_adapter
from rayinfer.adapters.adapter_memory import AdapterMemory
from rayinfer.adapters.module_patterns import PatternMatcher
from rayinfer.adapters.target_layers import TargetLayers
from rayinfer.errors import AdapterRefused, ConfigError
from rayinfer.kv_cache.adapter_id import folder_digest
from rayinfer.models.loader import empty_decoder, load_decoder
from support.tiny_models.tiny_adapters import WEIGHTS, make_adapter, save_adapter
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS
from support.tiny_models.tiny_checkpoints import make_tiny_llama
from support.tiny_models.tiny_qwen_vision import make_tiny_qwen_vision_model

Q_AND_V = r".*\.(q_proj|v_proj)"
LIMITS = AdapterLimits(max_rank=4)
Q_OF_LAYER_0 = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("llama"), hidden=32)


@pytest.fixture(scope="module")
def targets(model):
    return TargetLayers(empty_decoder(model))


@pytest.fixture
def adapter(model, tmp_path):
    return make_adapter(tmp_path / "adapter", model, pattern=Q_AND_V)


def change_settings(folder, **settings):
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    return folder


def change_tensors(folder, change):
    tensors, settings = load_file(folder / WEIGHTS), json.loads((folder / "adapter_config.json").read_text())
    change(tensors)
    return save_adapter(folder, tensors, **settings)


def change_header(folder, change):
    """Write the weights' file with another header: what `change` makes of it, or the text that it returns."""
    content = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    text = (change(header) or json.dumps(header)).encode()
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])
    return folder


def check_refused(folder, targets, *words, **limits):
    with pytest.raises(AdapterRefused) as refusal:
        read_adapter(folder, targets, AdapterLimits(**{"max_rank": 16} | limits))
    for word in words:
        assert word in str(refusal.value), refusal.value
    assert "\n" not in str(refusal.value)
    str(refusal.value).encode()  # as on its way to the router


def test_terms_have_the_rank_and_the_scale_of_their_patterns(model, targets, tmp_path):
    folder = make_adapter(
        *(tmp_path, model), pattern=Q_AND_V, rank=4, alpha=8, ranks={"v_proj": 2}, alpha_pattern={"layers.1.*": 3.0}
    )
    adapter = read_adapter(folder, targets, LIMITS)
    assert adapter.rank == 4
    by_layer = {
        path: [(term.outputs, term.scale, len(term.a)) for term in terms] for path, terms in adapter.terms.items()
    }
    assert by_layer == {
        "model.layers.0.self_attn.qkv_proj": [(range(32), 2.0, 4), (range(48, 64), 4.0, 2)],
        "model.layers.1.self_attn.qkv_proj": [(range(32), 0.75, 4), (range(48, 64), 1.5, 2)],
    }
    root = read_adapter(change_settings(folder, use_rslora=True, alpha_pattern={}), targets, LIMITS)
    assert root.terms["model.layers.0.self_attn.qkv_proj"][0].scale == 4.0


@pytest.mark.parametrize(
    "names",
    [
        ["q_proj", "v_proj"],
        ["self_attn.q_proj", "model.layers.0.self_attn.v_proj", "layers.1.self_attn.v_proj"],
        "model.layers.[01].self_attn.[qv]_proj",
    ],
    ids=str,
)
def test_target_modules_are_names_or_a_pattern(adapter, targets, names):
    read_adapter(change_settings(adapter, target_modules=names), targets, LIMITS)


def test_all_linear_means_all_layers_but_the_head(model, targets, tmp_path):
    folder = make_adapter(tmp_path, model, target_modules="all-linear")
    assert len(read_adapter(folder, targets, LIMITS).terms) == 8  # two layers of qkv, o, gate and up, down
    check_refused(
        *(change_tensors(folder, lambda tensors: tensors.pop(f"{Q_OF_LAYER_0}.lora_A.weight")), targets),
        *(f"{Q_OF_LAYER_0}.lora_A.weight", "missing"),
    )


def test_layers_to_transform_and_excluded_modules_may_lack_tensors(model, targets, tmp_path):
    folder = make_adapter(tmp_path, model, pattern=r".*\.1\..*\.q_proj", target_modules=["q_proj"])
    check_refused(folder, targets, "layers.0.self_attn.q_proj.lora_A.weight", "missing")
    read_adapter(change_settings(folder, layers_to_transform=[1]), targets, LIMITS)
    check_refused(change_settings(folder, layers_to_transform=[]), targets, "layers.0", "missing")  # [] are all
    read_adapter(change_settings(folder, layers_to_transform=None, exclude_modules=r".*\.0\..*"), targets, LIMITS)


def test_equal_contents_have_one_digest_and_others_another(adapter, model, targets, tmp_path):
    copied = shutil.copytree(adapter, tmp_path / "copy")
    other = make_adapter(tmp_path / "other", model, pattern=Q_AND_V, seed=1)
    digests = [read_adapter(folder, targets, LIMITS).digest for folder in (adapter, copied, other)]
    assert digests[0] == digests[1] != digests[2]
    assert read_adapter(change_settings(copied, lora_alpha=7.0), targets, LIMITS).digest != digests[0]


@pytest.mark.parametrize("name", ["target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"])
def test_patterns_that_would_match_for_years_are_refused_within_seconds(adapter, targets, name):
    slow = "(.*)" * 12 + r"\5\6[!?]"
    changed = change_settings(adapter, **{name: {slow: 2} if name.endswith("_pattern") else slow})
    started = time.monotonic()
    check_refused(changed, targets, "takes more than 1 s")
    assert time.monotonic() - started < 10


def test_many_patterns_have_no_more_time_than_one():
    matcher = PatternMatcher(limit_s=0.01)
    matches = (matcher.matches(r".*\.q_proj", "layers.1.self_attn.q_proj") for _ in range(1_000_000))
    with pytest.raises(AdapterRefused, match=r"takes more than 0\.01 s"):
        assert all(matches)


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"use_dora": True}, "DoRA"),
        ({"modules_to_save": ["lm_head"]}, "whole trained modules"),
        ({"trainable_token_indices": [1]}, "trained token embeddings"),
        ({"target_parameters": ["experts"]}, "parameters"),
        ({"bias": "all"}, "bias 'all'"),
        ({"lora_bias": True}, "biases"),
        ({"init_lora_weights": "pissa_niter_4"}, "changed base model"),
        ({"peft_type": "IA3"}, "peft_type 'IA3'"),
        ({"r": 0}, "r must be"),
        ({"r": True}, "r must be"),
        ({"r": 10**400}, "r must be"),
        ({"lora_alpha": "8"}, "lora_alpha must be"),
        ({"lora_alpha": 10**400}, "lora_alpha must be"),
        ({"lora_alpha": 1e308}, "lora_alpha or alpha_pattern scales model.layers.0.self_attn.q_proj by 2.5e+307"),
        ({"alpha_pattern": {"q_proj": -1e308}}, "scales model.layers.0.self_attn.q_proj by -2.5e+307"),
        ({"rank_pattern": {"q_proj": 10**400}}, "rank_pattern of 'q_proj'"),
        ({"alpha_pattern": {"q_proj": 10**400}}, "alpha_pattern of 'q_proj'"),
        ({"use_rslora": "false"}, "use_rslora must be true or false"),
        ({"target_modules": "(?R)"}, "recursion"),
        ({"target_modules": "((?R)|.)*"}, "recursion"),
        ({"target_modules": "(.(?1)?)*"}, "recursion"),
        ({"exclude_modules": "(.(?-1)?)*"}, "recursion"),
        ({"exclude_modules": "(?P<x>.(?&x)?)*"}, "recursion"),
        ({"rank_pattern": {"(?P<x>.(?P>x)?)*": 2}}, "recursion"),
        ({"target_modules": "(((.{1000}){1000}){1000}){1000}"}, "repeats"),
        ({"alpha_pattern": {r"((\\{0,40}){40}a?)": 2}}, "repeats"),
        ({"target_modules": "(?x)((.{1 0 0 0}){1000})"}, "the flag x"),
        ({"rank_pattern": {"q_proj": 1.5}}, "rank_pattern"),
        ({"target_modules": "("}, "bad pattern"),
        ({"alpha_pattern": {r"(q)\2": 1.0}}, "bad pattern"),
        ({"target_modules": "(" * 400 + ")" * 400}, "nested too deeply"),
        ({"target_modules": "q" * 1001}, "1,000 characters"),
        ({"target_modules": 3}, "target_modules"),
        ({"layers_to_transform": ["1"]}, "layers_to_transform"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_settings_that_cannot_be_computed_are_refused_by_name(adapter, targets, settings, word):
    check_refused(change_settings(adapter, **settings), targets, word, "adapter_config.json")


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("base_model.model.lm_head.lora_A.weight", "no layer of the model"),
        ("base_model.model.model.embed_tokens.lora_embedding_A", "no low-rank term"),
        (f"{Q_OF_LAYER_0}.lora_magnitude_vector", "no low-rank term"),
        ("base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight", "no layer of the model"),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", "no low-rank term"),
        ("base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight", "target_modules"),
    ],
)
def test_foreign_tensors_are_refused_by_name(adapter, targets, name, word):
    check_refused(
        change_tensors(adapter, lambda tensors: tensors.update({name: torch.zeros(4, 32)})), targets, name, word
    )


def test_a_term_that_is_there_under_both_of_its_names_is_refused(adapter, targets):
    name = f"{Q_OF_LAYER_0}.lora_A.default.weight"
    folder = change_tensors(adapter, lambda tensors: tensors.update({name: torch.zeros(4, 32)}))
    check_refused(folder, targets, Q_OF_LAYER_0, "twice")


@pytest.mark.parametrize(
    ("tensor", "word"),
    [
        (torch.zeros(4, 31), "shape [4, 31], expected [4, 32]"),
        (torch.zeros(5, 32), "shape [5, 32], expected [4, 32]"),
        (torch.full((4, 32), torch.nan), "not finite"),
        (torch.zeros(4, 32, dtype=torch.int32), "dtype I32"),
        (torch.zeros(4, 32, dtype=torch.float64), "dtype F64"),
    ],
    ids=str,
)
def test_tensors_of_another_base_or_without_numbers_are_refused_by_name(adapter, targets, tensor, word):
    name = f"{Q_OF_LAYER_0}.lora_A.weight"
    check_refused(change_tensors(adapter, lambda tensors: tensors.update({name: tensor})), targets, name, word)


def test_a_rank_above_the_limit_is_refused_by_name(adapter, targets):
    check_refused(adapter, targets, ".lora_A.weight has rank 4, above max_lora_rank 3", max_rank=3)


def test_broken_and_missing_files_are_refused_by_name(adapter, targets, tmp_path):
    file = adapter / WEIGHTS
    content = file.read_bytes()
    for broken, word in [
        (content[:-3], "truncated"),
        (content[:5], "truncated"),
        (b"\xff" * 64, "header"),
        (content + b"x", "long"),
    ]:
        file.write_bytes(broken)
        check_refused(adapter, targets, WEIGHTS, word)
    file.unlink()
    (adapter / "adapter_model.bin").write_bytes(b"pickle")
    check_refused(adapter, targets, "safetensors")
    for text, word in [
        ("{", "no JSON"),
        ("[" * 200_000, "no JSON"),
        ("[]", "no JSON object"),
        ('{"a": "' + "x" * (1 << 20) + '"}', "bytes"),
    ]:
        (adapter / "adapter_config.json").write_text(text)
        check_refused(adapter, targets, "adapter_config.json", word)
    check_refused(tmp_path / "nothing", targets, "adapter_config.json")


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"dtype": ["F32"]}, "corrupt"),
        ({"dtype": {}}, "corrupt"),
        ({"shape": ["ab", 10**10]}, "corrupt"),
        ({"shape": [[1], 10**18]}, "corrupt"),
        ({"data_offsets": [0, 10**400]}, "cannot take"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_entries_of_wrong_types_are_refused_by_name(adapter, targets, entry, word):
    name = f"{Q_OF_LAYER_0}.lora_A.weight"
    check_refused(change_header(adapter, lambda header: header[name].update(entry)), targets, WEIGHTS, name, word)


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 100_000], ids=["lists", "objects"])
def test_headers_that_are_nested_too_deeply_are_refused(adapter, targets, text):
    check_refused(change_header(adapter, lambda _: text), targets, WEIGHTS, "corrupt safetensors header")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("two\nlines")], ids=["memory", "lines"])
def test_whatever_goes_wrong_is_a_refusal_that_names_the_folder(adapter, error):
    class Failing:
        def __getattr__(self, name):
            raise error

    check_refused(adapter, Failing(), str(adapter), type(error).__name__)


def test_a_pipe_in_place_of_the_settings_is_refused(adapter, targets):
    (adapter / "adapter_config.json").unlink()
    os.mkfifo(adapter / "adapter_config.json")
    check_refused(adapter, targets, "adapter_config.json is no regular file")


def test_names_that_are_no_unicode_are_escaped(adapter, targets):
    name = f"{Q_OF_LAYER_0}.lora_A.weight"
    renamed = change_header(adapter, lambda header: header.update({"x\ud800\n": header.pop(name)}))
    check_refused(renamed, targets, r"tensor x\ud800\n is")


def test_numbers_beyond_the_types_of_the_model_are_refused_by_name(adapter, targets):
    name = f"{Q_OF_LAYER_0}.lora_A.weight"
    change_tensors(adapter, lambda tensors: tensors[name].fill_(3.4e38))
    for dtype in (torch.float32, torch.bfloat16):
        memory = AdapterMemory(targets, AdapterLimits(max_rank=4, dtype=dtype), torch.device("cpu"))
        if dtype == torch.float32:
            memory.load(str(adapter))
        else:
            with pytest.raises(AdapterRefused, match=rf"{name} holds numbers that are not finite in .* bfloat16"):
                memory.load(str(adapter))
        memory.close()


def test_adapters_above_the_limits_of_bytes_are_refused_and_say_what_they_need(adapter, targets):
    num_bytes = sum(tensor.nbytes for tensor in load_file(adapter / WEIGHTS).values())  # float32
    fitting = AdapterLimits(max_rank=4, max_bytes=num_bytes, max_slot_bytes=num_bytes // 2, dtype=torch.bfloat16)
    read = read_adapter(adapter, targets, fitting)
    assert (read.num_bytes, read.slot_bytes) == (num_bytes, num_bytes // 2)
    words = f"{WEIGHTS}: tensors of {num_bytes} bytes", f"above max_cpu_lora_bytes {num_bytes - 1}"
    check_refused(adapter, targets, *words, max_bytes=num_bytes - 1)
    words = f"{WEIGHTS}: tensors of {num_bytes // 2} bytes in bfloat16", f"above max_lora_bytes {num_bytes // 2 - 1}"
    check_refused(adapter, targets, *words, max_slot_bytes=num_bytes // 2 - 1, dtype=torch.bfloat16)


def test_an_emptied_slot_holds_no_terms_and_is_filled_again(adapter, model, targets):
    decoder = load_decoder(model, torch.float32, torch.device("cpu"))
    decoder.use_adapters(2)
    memory = AdapterMemory(targets, LIMITS, torch.device("cpu"))
    digest = memory.load(str(adapter)).digest

    def parts():
        return [[len(layer.adapters[slot]) for layer in decoder.adapted_layers().values()] for slot in range(2)]

    for slot in range(2):
        memory.fill_slot(decoder, slot, digest)
    filled, other = parts()
    assert sum(filled) == 4
    memory.empty_slots(decoder, [1, 1])
    assert parts() == [filled, [0] * len(other)]
    memory.fill_slot(decoder, 1, digest)
    assert parts() == [filled, other]
    memory.close()


def test_a_slot_that_was_filled_half_way_is_emptied_like_others(adapter, targets, model):
    decoder = load_decoder(model, torch.float32, torch.device("cpu"))
    decoder.use_adapters(1)
    memory = AdapterMemory(targets, LIMITS, torch.device("cpu"))
    loaded = memory.load(str(adapter))
    *_, last = (layer for path, layer in decoder.adapted_layers().items() if path in loaded.terms)

    def fail(*_):
        raise RuntimeError("odd")

    last.low_rank_parts = fail
    with pytest.raises(RuntimeError, match="odd"):
        memory.fill_slot(decoder, 0, loaded.digest)
    assert any(layer.adapters[0] for layer in decoder.adapted_layers().values())
    memory.empty_slots(decoder, [0])
    assert not any(layer.adapters[0] for layer in decoder.adapted_layers().values())
    memory.close()


def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end(adapter, model, targets):
    digest = folder_digest(adapter)
    other = make_adapter(adapter.with_name("other"), model, pattern=Q_AND_V, seed=1)

    class Replacing:
        """Layers that are looked at when the header has been read."""

        def __getattr__(self, name):
            if (other / WEIGHTS).exists():
                (other / WEIGHTS).replace(adapter / WEIGHTS)
            return getattr(targets, name)

    assert read_adapter(adapter, Replacing(), LIMITS).digest == digest
    assert not (other / WEIGHTS).exists()


def test_patterns_are_matched_with_the_names_that_peft_had_for_layers(tmp_path):
    model = make_tiny_qwen_vision_model(tmp_path)
    targets = TargetLayers(empty_decoder(model))
    own = "model.language_model.layers"  # "model.layers" in the checkpoint

    def save(name, **settings):
        shapes = {"q_proj": (64, 64), "v_proj": (32, 64)}
        tensors = {}
        for layer, part in [(layer, part) for layer in range(2) for part in shapes]:
            outputs, inputs = shapes[part]
            term = f"base_model.model.{own}.{layer}.self_attn.{part}"
            tensors |= {f"{term}.lora_A.weight": torch.ones(4, inputs), f"{term}.lora_B.weight": torch.ones(outputs, 4)}
        return save_adapter(tmp_path / name, tensors, **{"r": 4, "lora_alpha": 8} | settings)

    names = rf"{own}\.\d\.self_attn\.[qv]_proj"
    read = read_adapter(
        save("scales", target_modules=names, alpha_pattern={f"{own}.0.self_attn.q_proj": 64}), targets, LIMITS
    )
    scales = {path: [term.scale for term in terms] for path, terms in read.terms.items()}
    assert list(scales.values()) == [[16.0, 2.0], [2.0, 2.0]]
    ranks = {f"{own}.1.self_attn.v_proj": 2}
    check_refused(
        *(save("ranks", target_modules=names, rank_pattern=ranks), targets),
        *(f"{own}.1.self_attn.v_proj.lora_A.weight", "expected [2, 64]"),
    )
    check_refused(
        *(save("missing", target_modules=rf"{own}\.\d\.self_attn\.[qvk]_proj"), targets),
        *(f"base_model.model.{own}.0.self_attn.k_proj.lora_A.weight", "missing"),
    )


def test_an_adapter_without_tensors_is_refused(targets, tmp_path):
    check_refused(save_adapter(tmp_path, {}, r=4, lora_alpha=8, target_modules=[]), targets, "changes no layer")


def test_experts_and_their_routers_take_no_adapters(tmp_path):
    names = TargetLayers(empty_decoder(DECODERS["mixtral"](tmp_path))).by_name
    assert {name.rpartition(".")[2] for name in names} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_encoder_decoders_take_no_adapters(tmp_path):
    with pytest.raises(ConfigError, match="enable_lora"):
        TargetLayers(empty_decoder(ENCODER_DECODERS["t5"](tmp_path)))


def test_two_names_of_one_layer_are_refused(tmp_path):
    model = make_tiny_qwen_vision_model(tmp_path)
    targets = TargetLayers(empty_decoder(model))
    names = [f"base_model.model.{start}.layers.0.self_attn.q_proj" for start in ("model.language_model", "model")]
    tensors = {f"{names[0]}.lora_A.weight": torch.ones(4, 64), f"{names[1]}.lora_B.weight": torch.ones(64, 4)}
    folder = save_adapter(tmp_path / "two", tensors, target_modules=["q_proj"], r=4, lora_alpha=8)
    check_refused(folder, targets, "belongs to the same layer as", names[0])


def test_unexpected_errors_while_reading_are_in_the_log_with_their_traceback(adapter, caplog):
    class Odd:
        """Layers that cannot be looked at."""

        def __getattr__(self, name):
            raise ZeroDivisionError(name)

    check_refused(adapter, Odd(), "cannot be read as an adapter: ZeroDivisionError")
    assert [record.exc_info[0] for record in caplog.records] == [ZeroDivisionError]

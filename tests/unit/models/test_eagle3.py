import pytest
import torch
from safetensors.torch import load_file, save_file

from rayinfer.attention.paged_attention import AttentionBatch
from rayinfer.errors import ModelLoadError
from rayinfer.kv_cache.cache_tensors import BlockPool, BlockShape
from rayinfer.models.eagle3 import is_eagle3_folder, layers_read, load_eagle3_head
from support.tiny_models.tiny_checkpoints import change_config
from support.tiny_models.tiny_eagle3 import HeadShape, PlainHead, make_tiny_eagle3

CPU = torch.device("cpu")
SHAPE = HeadShape()


def loaded(folder):
    head = load_eagle3_head(folder, torch.float32, CPU)
    head.prepare(torch.float32, CPU, 64)
    shape = BlockShape(
        num_layers=1, block_size=8, num_kv_heads=SHAPE.kv_heads, head_dim=SHAPE.head_dim, dtype=torch.float32
    )
    head.bind_kv_caches(BlockPool(shape, 8, CPU).caches)
    return head


@pytest.mark.parametrize("has_embedding", [False, True])
def test_a_head_computes_what_plain_torch_does(has_embedding, tmp_path):
    make_tiny_eagle3(tmp_path, has_embedding=has_embedding)
    generator = torch.Generator().manual_seed(1)
    embedding = torch.randn(SHAPE.vocab, SHAPE.hidden, generator=generator)
    token_ids = torch.randint(SHAPE.vocab, (13,), generator=generator)
    states = torch.randn(13, 3 * SHAPE.hidden, generator=generator)
    head, plain = loaded(tmp_path), PlainHead(tmp_path, embedding)
    assert (head.embed_tokens is not None) == has_embedding
    embedded = embedding[token_ids] if head.embed_tokens is None else head.embed_tokens.forward(token_ids)
    hidden = head.reduce(states)
    batch = AttentionBatch(
        positions=torch.arange(13),
        slot_mapping=torch.arange(13) + 8,
        cu_seqlens_q=torch.tensor([0, 13], dtype=torch.int32),
        seq_lens=torch.tensor([13], dtype=torch.int32),
        block_tables=torch.tensor([[1, 2]], dtype=torch.int32),
    )
    out = head.forward(embedded, hidden.clone(), batch)
    expected = plain.forward(token_ids, states @ plain.weights["fc.weight"].T)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-4)
    ids = plain.logits(expected).argmax(-1)
    assert head.likeliest(out).tolist() == (ids + plain.weights["d2t"][ids]).tolist()


def test_layers_are_those_of_published_heads():
    assert layers_read(32) == (2, 16, 29)


def test_a_folder_holds_a_head_or_a_model(tmp_path):
    assert is_eagle3_folder(make_tiny_eagle3(tmp_path / "head"))
    assert not is_eagle3_folder(change_config(tmp_path / "head", architectures=["LlamaForCausalLM"]))
    assert not is_eagle3_folder(tmp_path / "nothing")


def changed(folder, **tensors):
    weights = load_file(folder / "model.safetensors") | tensors
    save_file({name: tensor for name, tensor in weights.items() if tensor is not None}, folder / "model.safetensors")


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"d2t": None}, "the checkpoint lacks d2t"),
        ({"d2t": torch.zeros(7, dtype=torch.int64)}, r"tensor d2t has shape \(7,\), expected \(100,\)"),
        ({"d2t": torch.full((100,), 300)}, "tensor d2t names tokens that the vocabulary of 384 lacks"),
        ({"fc.weight": None}, "the checkpoint lacks fc.weight"),
        ({"fc.weight": torch.zeros(64, 64)}, "tensor fc.weight has shape"),
        ({"other.weight": torch.zeros(4)}, "no parameter for tensor other.weight"),
    ],
    ids=str,
)
def test_a_damaged_head_is_an_error_that_names_the_tensor(tensors, message, tmp_path):
    changed(make_tiny_eagle3(tmp_path), **tensors)
    with pytest.raises(ModelLoadError, match=message):
        load_eagle3_head(tmp_path, torch.float32, CPU)


def test_a_config_without_a_field_is_an_error(tmp_path):
    change_config(make_tiny_eagle3(tmp_path), without=["hidden_size"])
    with pytest.raises(ModelLoadError, match="hidden_size"):
        load_eagle3_head(tmp_path, torch.float32, CPU)


def test_a_head_of_the_whole_vocabulary_needs_no_map(tmp_path):
    changed(make_tiny_eagle3(tmp_path, SHAPE._replace(draft_vocab=384)), d2t=None, t2d=None)
    assert load_eagle3_head(tmp_path, torch.float32, CPU).token_ids.tolist() == list(range(384))

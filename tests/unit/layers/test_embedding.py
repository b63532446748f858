import torch

from rayinfer.layers.embedding import TokenEmbedding


def test_every_token_gets_its_row():
    embedding = TokenEmbedding(9, 4)
    with torch.no_grad():
        embedding.weight.copy_(torch.arange(36.0).view(9, 4))
    token_ids = torch.tensor([3, 0, 8, 3], dtype=torch.int32)
    assert torch.equal(embedding(token_ids), embedding.weight[token_ids.long()])

import torch

from rayinfer.layers.embedding import PositionEmbedding, TokenEmbedding


def test_every_token_gets_its_row():
    embedding = TokenEmbedding(9, 4)
    with torch.no_grad():
        embedding.weight.copy_(torch.arange(36.0).view(9, 4))
    token_ids = torch.tensor([3, 0, 8, 3], dtype=torch.int32)
    assert torch.equal(embedding(token_ids), embedding.weight[token_ids.long()])


def test_each_token_gets_the_vector_of_its_own_position():
    embedding = PositionEmbedding(6, 4)
    with torch.no_grad():
        embedding.weight.copy_(torch.arange(24.0).view(6, 4))
    assert embedding(torch.tensor([5, 0, 5])).tolist() == [[20, 21, 22, 23], [0, 1, 2, 3], [20, 21, 22, 23]]

import torch

from rayinfer.models.loader import load_decoder
from rayinfer.optimization.self_samples import sample_sequences
from rayinfer.optimization.sequence_batches import SequenceBatches
from support.tiny_models.tiny_checkpoints import make_tiny_llama

CPU = torch.device("cpu")


def ready_decoder(folder):
    decoder = load_decoder(folder, torch.float32, CPU)
    decoder.prepare(torch.float32, CPU, 64)
    return decoder


def test_sequences_begin_as_texts_do_and_are_the_same_every_time(tmp_path):
    folder = make_tiny_llama(tmp_path)
    first, second = (sample_sequences(ready_decoder(folder), torch.float32, 6, 40) for _ in range(2))
    assert first.shape == (6, 40)
    assert (first[:, 0] == 1).all()
    assert torch.equal(first, second)
    assert len(set(map(tuple, first.tolist()))) == 6


def test_without_a_first_token_every_sequence_begins_with_one_of_its_own(tmp_path):
    decoder = ready_decoder(make_tiny_llama(tmp_path, bos_token_id=None))
    assert len(sample_sequences(decoder, torch.float32, 20, 2)[:, 0].unique()) > 10


@torch.inference_mode()
def test_tokens_are_drawn_from_what_the_model_finds_likely(tmp_path):
    decoder = ready_decoder(make_tiny_llama(tmp_path, initializer_range=0.4))
    token_ids = sample_sequences(decoder, torch.float32, 16, 48)
    # All at once: what is read in one step must be what was written token by token.
    batches = SequenceBatches(decoder, torch.float32, 16, 48, shares_memory=True)
    hidden = decoder.forward(token_ids.to(torch.int32).flatten(), batches.step(0, 48))
    logprobs = decoder.logits(hidden).log_softmax(-1).view(16, 48, -1)[:, :-1]
    drawn = logprobs.gather(2, token_ids[:, 1:, None])
    expected = (logprobs.exp() * logprobs).sum(-1)  # of a token that is drawn
    assert abs(drawn.mean() - expected.mean()) < 0.15
    assert expected.mean() < -0.5

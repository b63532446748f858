"""Encodings of requests: their order, what is decoded ahead, and what of cancelled ones is dropped."""

import pytest

from rayinfer.engine.worker.images.encoding_queue import DECODED_AHEAD, EncodingQueue
from support.fakes.fake_images import TIMEOUT_S, FakeDecoder, HeldImageModel, held_encoder, image_inputs
from support.services.polling import wait_until


@pytest.fixture
def model():
    return HeldImageModel()


@pytest.fixture
def decoder():
    return FakeDecoder()


@pytest.fixture
def encoder(model, decoder):
    encoder = held_encoder(model, decoder)
    yield encoder
    model.may_go.set()
    encoder.close()


def test_few_images_are_decoded_ahead_however_many_wait():
    decoder, known = FakeDecoder(holds=True), set()
    queue = EncodingQueue(decoder, lambda images: [each for each in images if each.digest not in known])
    first, _ = image_inputs(range(4)), [queue.add(image_inputs(range(4 * n, 4 * n + 4))) for n in range(50)]
    assert decoder.submitted == list(range(DECODED_AHEAD))
    known |= {first[0].digest, first[1].digest}
    assert queue.start_image(first[2]) is decoder.futures[2]
    assert decoder.submitted == list(range(2 + DECODED_AHEAD))
    queue.close()
    assert all(future.cancelled() for future in decoder.futures[2:])


def test_an_encoding_that_is_cancelled_before_it_begins_is_never_computed(encoder, model, decoder):
    first, second, third = (encoder.start(image_inputs(numbers)) for numbers in ([1], [2, 3], [4]))
    assert model.has_begun.wait(TIMEOUT_S)
    assert second.cancel()
    model.may_go.set()
    assert [len(each.result(TIMEOUT_S)) for each in (first, third)] == [1, 1]
    assert model.encoded == [1, 4]
    assert decoder.futures[decoder.submitted.index(2)].done()
    wait_until(lambda: encoder.stats.num_waiting == 0)


def test_what_has_begun_as_it_is_cancelled_is_kept_and_the_rest_dropped(encoder, model):
    cancelled = encoder.start(image_inputs([1, 2, 3]))
    assert model.has_begun.wait(TIMEOUT_S)
    cancelled.cancel()
    model.may_go.set()
    assert len(encoder.encode(image_inputs([1, 5]))) == 2
    assert model.encoded == [1, 5]


def test_images_of_two_requests_are_computed_once(encoder, model, decoder):
    one, other = encoder.start(image_inputs([1, 2])), encoder.start(image_inputs([2, 1]))
    model.may_go.set()
    assert one.result(TIMEOUT_S) == other.result(TIMEOUT_S)[::-1]
    assert sorted(model.encoded) == sorted(decoder.submitted) == [1, 2]


def test_calls_come_before_the_next_image_however_many_wait(decoder):
    queue, calls = EncodingQueue(decoder, list), []
    for number in range(3):
        queue.add(image_inputs([number]))
    called = queue.call(lambda: calls.append(list(decoder.submitted)))
    (image,) = queue.take().images
    assert not called.done()
    queue.start_image(image)
    assert called.done()
    assert len(queue) == 3
    queue.close()
    assert queue.take() is None


def test_a_closed_encoder_cancels_what_waits(encoder, model):
    waiting = [encoder.start(image_inputs([number])) for number in range(3)]
    encoder.close()
    assert all(each.cancelled() for each in waiting)
    assert encoder.start(image_inputs([7])).cancelled()
    model.may_go.set()
    encoder.release()

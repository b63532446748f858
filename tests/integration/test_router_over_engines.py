"""A router over real engines in this process: order, tenants' shares, and prefix reuse."""

import pytest

from rayinfer.benchmark.studies.routing.prefixes import conversation_hits, document_hits
from rayinfer.benchmark.studies.routing.priorities import URGENT_LOAD, background_share, tenant_shares, urgent_arrivals
from support.tiny_models.tiny_checkpoints import make_tiny_llama


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny_llama(tmp_path_factory.mktemp("tiny"), max_position_embeddings=2048)


async def test_an_urgent_request_has_its_first_token_three_steps_after_it_came_however_many_wait(tiny):
    arrival = await urgent_arrivals(tiny, num_background=50, lengths=(48, 24))
    assert arrival.worst_steps <= 3
    assert arrival.worst_steps_in_all <= 0.25 * arrival.first_come_steps


async def test_background_requests_get_what_urgent_ones_leave_and_no_more(tiny):
    left = 1 - URGENT_LOAD
    share = (await background_share(tiny, num_steps=800, lengths=(32, 16))).share("background")
    assert 0.5 * left <= share <= 1.5 * left  # first come, first served, they would have twice as much


async def test_tenants_get_tokens_by_their_weights(tiny):
    shares = await tenant_shares(tiny, num_requests=120, lengths=(16, 12))
    assert 0.85 * 3 <= shares.tokens["large"] / shares.tokens["small"] <= 1.15 * 3


async def test_conversations_stay_with_the_engine_that_knows_them(tiny):
    by_prefix = await conversation_hits(tiny, routing="prefix", num_conversations=12, num_exchanges=4)
    at_random = await conversation_hits(tiny, routing="random", num_conversations=12, num_exchanges=4)
    assert by_prefix.share >= 0.9
    assert by_prefix.cached_tokens > at_random.cached_tokens


async def test_questions_about_one_document_go_together(tiny):
    grouped = await document_hits(tiny, group_by_prefix=True, num_documents=6, num_questions=4)
    in_order = await document_hits(tiny, group_by_prefix=False, num_documents=6, num_questions=4)
    assert grouped.share >= 0.8
    assert grouped.cached_tokens > 2 * in_order.cached_tokens

import asyncio

from rayinfer.engine.loop.router_subscriptions import RouterSubscriptions
from rayinfer.outputs import Credits
from rayinfer.protocols import ModelDescription

DESCRIPTION = ModelDescription(
    name="m", max_model_len=9, vocab_size=3, created=1, max_num_seqs=16, kv_blocks_total=100, block_size=16
)


def test_routers_that_read_share_the_credits():
    subscriptions = RouterSubscriptions(DESCRIPTION, timeout_s=60.0)
    assert subscriptions.credits == Credits(18, 1600, 0)
    subscriptions.subscribe("first", is_read=True)
    subscriptions.subscribe("only submits")
    assert subscriptions.credits == Credits(18, 1600, 0)
    second = subscriptions.subscribe("second", is_read=True)
    assert subscriptions.credits == Credits(9, 800, 0)
    subscriptions.unsubscribe("second", second)
    assert subscriptions.credits == Credits(18, 1600, 0)


def test_a_router_has_one_subscription_until_it_unsubscribes():
    subscriptions = RouterSubscriptions(DESCRIPTION, timeout_s=60.0)
    before = subscriptions.subscribe("a")
    assert subscriptions.subscribe("a", is_read=True) is before
    subscriptions.unsubscribe("a", before)
    after = subscriptions.subscribe("a")
    subscriptions.unsubscribe("a", before)  # a late close does not end the new subscription
    assert after is not before
    assert subscriptions.current() == [after]


def test_subscriptions_that_are_not_read_in_time_are_dropped():
    patient, strict = (RouterSubscriptions(DESCRIPTION, timeout_s) for timeout_s in (60.0, 0.0))
    for subscriptions in (patient, strict):
        subscriptions.subscribe("reads", is_read=True)
    unread = strict.subscribe("does not")
    patient.subscribe("does not")
    assert strict.pop_unread() == [unread]
    assert len(strict.current()) == 1
    assert patient.pop_unread() == []


async def test_closed_subscriptions_end_whenever_they_were_made():
    subscriptions = RouterSubscriptions(DESCRIPTION, timeout_s=60.0)
    before = subscriptions.subscribe("before", is_read=True)
    subscriptions.close()
    async with asyncio.timeout(10):
        for each in (before, subscriptions.subscribe("after", is_read=True)):
            assert await each.outputs.get() is None

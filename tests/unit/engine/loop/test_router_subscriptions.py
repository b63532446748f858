import asyncio

from rayinfer.engine.loop.router_subscriptions import RouterLines
from rayinfer.outputs import Credits
from rayinfer.protocols import ModelDescription

DESCRIPTION = ModelDescription(
    name="m", max_model_len=9, vocab_size=3, created=1, max_num_seqs=16, kv_blocks_total=100, block_size=16
)


def test_routers_that_listen_share_the_credits_and_one_that_leaves_gives_its_share_back():
    lines = RouterLines(DESCRIPTION, listen_within_s=60.0)
    assert lines.credits == Credits(18, 1600, 0)
    lines.open("first", listens=True)
    lines.open("only submits")
    assert lines.credits == Credits(18, 1600, 0)
    second = lines.open("second", listens=True)
    assert lines.credits == Credits(9, 800, 0)
    lines.leave("second", second)
    assert lines.credits == Credits(18, 1600, 0)


def test_a_router_has_one_line_until_it_leaves():
    lines = RouterLines(DESCRIPTION, listen_within_s=60.0)
    before = lines.open("a")
    assert lines.open("a", listens=True) is before
    lines.leave("a", before)
    after = lines.open("a")
    lines.leave("a", before)  # who closes late takes nothing from who came back
    assert after is not before
    assert lines.in_use() == [after]


def test_routers_that_do_not_listen_in_time_are_forgotten():
    patient, strict = (RouterLines(DESCRIPTION, listen_within_s) for listen_within_s in (60.0, 0.0))
    for lines in (patient, strict):
        lines.open("listens", listens=True)
    line = strict.open("does not")
    patient.open("does not")
    assert strict.take_unheard() == [line]
    assert len(strict.in_use()) == 1
    assert patient.take_unheard() == []


async def test_nothing_comes_by_a_closed_line_whenever_it_was_opened():
    lines = RouterLines(DESCRIPTION, listen_within_s=60.0)
    before = lines.open("before", listens=True)
    lines.close()
    async with asyncio.timeout(10):
        for line in (before, lines.open("after", listens=True)):
            assert await line.box.take() is None

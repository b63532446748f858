"""Pages of the window pool: readers, eviction and what stays for prefix hits."""

import pytest

from rayinfer.kv_cache.window_pages import NO_PAGE, WindowPages


def test_pages_of_cached_blocks_are_evicted_in_the_order_in_which_they_were_freed():
    pages = WindowPages(num_blocks=10, num_pages=3)
    pages.allocate([4, 5, 6])
    pages.free([4, 5, 6], is_cached=[True, True, True])
    assert (pages.num_free, pages.num_used) == (3, 0)
    pages.allocate([9])
    assert pages.of_block[4] == NO_PAGE
    assert all(pages.of_block[[5, 6, 9]] != NO_PAGE)


def test_pages_of_other_blocks_are_taken_first():
    pages = WindowPages(num_blocks=10, num_pages=3)
    pages.allocate([4, 5, 6])
    pages.free([4, 5, 6], is_cached=[True, False, True])
    assert pages.of_block[5] == NO_PAGE
    pages.allocate([9])
    assert all(pages.of_block[[4, 6]] != NO_PAGE)


def test_a_page_stays_until_its_last_reader_frees_it():
    pages = WindowPages(num_blocks=4, num_pages=2)
    pages.allocate([0])
    pages.pin([0])
    pages.free([0], is_cached=[False])
    assert pages.num_used == 1
    pages.forget([0])  # its content is not finite, say, but a row still reads it
    assert pages.of_block[0] != NO_PAGE
    pages.free([0], is_cached=[False])
    assert (pages.num_used, pages.num_free) == (0, 2)


def test_a_page_that_is_pinned_again_is_not_evicted():
    pages = WindowPages(num_blocks=4, num_pages=2)
    pages.allocate([0, 1])
    pages.free([0, 1], is_cached=[True, True])
    pages.pin([0])
    pages.allocate([2])
    assert pages.of_block[0] != NO_PAGE
    assert pages.of_block[1] == NO_PAGE


@pytest.mark.parametrize("use", [lambda pages: pages.pin([3]), lambda pages: pages.free([3], is_cached=[True])])
def test_a_block_without_a_page_is_neither_pinned_nor_freed(use):
    with pytest.raises(RuntimeError, match="block 3"):
        use(WindowPages(num_blocks=4, num_pages=2))

import mmap
import resource
import threading

import numpy as np

from rayinfer.kv_cache.pool_pages import PoolPages

NUM_BLOCKS, BLOCK_PAGES = 600, 3


def new_pool():
    """Make the tensors of a pool of small pages, of which none has memory yet."""
    size = NUM_BLOCKS * BLOCK_PAGES * mmap.PAGESIZE
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(pages, np.uint8).reshape(NUM_BLOCKS, -1)


def num_faults_of_writing(blocks):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks[:, :: mmap.PAGESIZE] = 1
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_the_first_blocks_get_their_memory_and_keep_their_contents():
    views = [new_pool(), new_pool()]
    views[1][5] = 7
    pages = PoolPages(lambda: views, NUM_BLOCKS // 2)
    assert pages.wait(30)
    for view in views:
        assert num_faults_of_writing(view[: NUM_BLOCKS // 2]) < 100
        assert num_faults_of_writing(view[NUM_BLOCKS // 2 :]) > NUM_BLOCKS
    assert (views[1][5, 1 : mmap.PAGESIZE] == 7).all()


def test_it_ends_wherever_it_is():
    views = [new_pool()]
    for _ in range(10):
        pages = PoolPages(lambda: views, NUM_BLOCKS)
        pages.end()
        assert pages.wait(0)


def test_nothing_is_taken_while_a_step_is_computed():
    views = [new_pool()]
    gate = threading.Event()

    def wait_for_gate():
        gate.wait()
        return views

    pages = PoolPages(wait_for_gate, NUM_BLOCKS)
    pages.begin_step()
    gate.set()
    assert not pages.wait(0.3)
    assert num_faults_of_writing(views[0][:10]) > 10
    pages.end_step()
    assert pages.wait(30)
    assert num_faults_of_writing(views[0][10:]) < 100


def test_it_ends_while_a_step_is_computed():
    pages = PoolPages(lambda: [new_pool() for _ in range(20)], NUM_BLOCKS)
    pages.begin_step()
    pages.end()
    assert pages.wait(0)


def test_more_blocks_follow_while_there_is_room():
    views = [new_pool(), new_pool()]
    taken = []

    def has_room(num_bytes):
        taken.append(num_bytes)
        return False

    pages = PoolPages(lambda: views, NUM_BLOCKS // 2, has_room)
    assert pages.wait(30)
    assert taken == [NUM_BLOCKS // 2 * 2 * BLOCK_PAGES * mmap.PAGESIZE]
    assert num_faults_of_writing(views[0][NUM_BLOCKS // 2 :]) > NUM_BLOCKS
    pages = PoolPages(lambda: [views[1]], NUM_BLOCKS // 2, lambda num_bytes: True)
    assert pages.wait(30)
    assert num_faults_of_writing(views[1]) < 100

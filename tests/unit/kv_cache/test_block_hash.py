import subprocess
import sys

import numpy as np
import pytest
import xxhash

from rayinfer.kv_cache.block_hash import ROOT_HASH, BlockHashes, hash_blocks
from support.golden.block_hash_reference import hash_block


def tokens(*values):
    return np.array(values, dtype=np.int32)


def hashes_of(token_ids, block_size=4, salt=b""):
    chain = BlockHashes(block_size, salt)
    chain.extend(token_ids, len(token_ids))
    return chain.hashes


def test_a_hash_is_xxh3_of_parent_salt_and_little_endian_tokens():
    parent = bytes(range(16))
    data = parent + b"tenant" + b"\x01\x00\x00\x00" + b"\x00\x01\x00\x00" + b"\xff\xff\xff\x7f"
    block_hash = hash_block(parent, b"tenant", tokens(1, 256, 2**31 - 1))
    assert block_hash == xxhash.xxh3_128(data).digest()
    assert len(block_hash) == len(ROOT_HASH) == 16


@pytest.mark.parametrize(
    ("parent", "salt", "token_ids"),
    [
        (bytes(15) + b"\x01", b"salt", tokens(1, 2)),
        (ROOT_HASH, b"tlas", tokens(1, 2)),
        (ROOT_HASH, b"", tokens(1, 2)),
        (ROOT_HASH, b"salt", tokens(2, 1)),
    ],
)
def test_whatever_differs_gives_another_hash(parent, salt, token_ids):
    assert hash_block(parent, salt, token_ids) != hash_block(ROOT_HASH, b"salt", tokens(1, 2))


def test_big_endian_and_strided_tokens_give_the_hash_of_the_same_numbers():
    plain = tokens(1, 2, 3, 4)
    strided = np.array([1, 0, 2, 0, 3, 0, 4, 0], dtype=np.int32)[::2]
    assert hash_block(ROOT_HASH, b"", plain.astype(">i4")) == hash_block(ROOT_HASH, b"", plain)
    assert hashes_of(strided, block_size=2) == hashes_of(plain, block_size=2)


def test_a_chain_links_each_full_block_to_its_parent_and_leaves_the_rest_out():
    token_ids = tokens(*range(11))
    first = hash_block(ROOT_HASH, b"s", token_ids[:4])
    assert hashes_of(token_ids, salt=b"s") == [first, hash_block(first, b"s", token_ids[4:8])]


def test_a_chain_grown_token_by_token_equals_one_made_at_once():
    token_ids = np.arange(100, dtype=np.int32)
    grown = BlockHashes(8, b"salt")
    for num_tokens in range(101):
        grown.extend(token_ids, num_tokens)
        assert len(grown.hashes) == num_tokens // 8
    assert grown.hashes == hashes_of(token_ids, block_size=8, salt=b"salt")


def test_a_block_is_hashed_once_even_if_its_tokens_are_overwritten_later():
    token_ids = np.arange(8, dtype=np.int32)
    chain = BlockHashes(4, b"")
    chain.extend(token_ids, 4)
    first = chain.hashes[0]
    token_ids[:4] = 99
    chain.extend(token_ids, 8)
    assert chain.hashes == [first, hash_block(first, b"", token_ids[4:])]


@pytest.mark.parametrize("num_tokens", [0, 3, 4, 11, 12])
def test_a_list_of_tokens_has_the_hashes_of_an_array(num_tokens):
    token_ids = [7, 2**31 - 1, *range(256, 266)][:num_tokens]
    assert hash_blocks(token_ids, 4, b"salt") == hashes_of(tokens(*token_ids), salt=b"salt")


def test_tokens_beyond_the_announced_ones_are_not_hashed():
    chain = BlockHashes(4, b"")
    chain.extend(np.zeros(64, dtype=np.int32), 7)
    assert len(chain.hashes) == 1


def test_announcing_more_tokens_than_given_is_our_own_mistake():
    with pytest.raises(AssertionError, match="9 tokens expected, 8 given"):
        BlockHashes(4, b"").extend(np.zeros(8, dtype=np.int32), 9)


def test_equal_tokens_behind_different_prefixes_have_different_hashes():
    one, other = hashes_of(tokens(1, 1, 5, 6), block_size=2), hashes_of(tokens(2, 2, 5, 6), block_size=2)
    assert one[1] != other[1]


def test_hashes_and_block_manager_load_no_torch():
    code = "import sys, rayinfer.kv_cache.block_hash, rayinfer.kv_cache.block_manager; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

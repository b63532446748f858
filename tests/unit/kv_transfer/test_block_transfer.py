"""Blocks of one machine's store arrive in another's as they are, or not at all."""

import random
import socket
import threading
import time
import tracemalloc
from dataclasses import replace

import pytest

from rayinfer.kv_transfer.messages import FROM_SERVER, MAX_READ_BLOCKS, VERSION, Hello, Read, receive
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.kv_transfer.tcp_agent import TcpTransferAgent
from rayinfer.kv_transfer.transfer_agent import LocalDescriptor, PeerAddress, TransferState
from rayinfer.transport.engine_certificate import client_context
from rayinfer.transport.self_signed import make_certificate
from rayinfer.wire import encode
from support.fakes.block_peers import HOST, IDENTITY, Relay, fetching, filled_store, names, serving
from support.fakes.fake_blocks import BLOCK_BYTES, bytes_of, has, open_slots, put

SOON_S = 60.0
NOW = {"wait_s": 0.0, "timeout_s": SOON_S}


@pytest.fixture
def source(tmp_path):
    return filled_store(tmp_path / "source.kv", 20)


@pytest.fixture
def target(tmp_path):
    return open_slots(tmp_path / "target.kv", 64)


def num_whole(slots, count=20):
    """Blocks at the chain's begin; asserts that each that is there is right."""
    there = [has(slots, number) for number in range(count)]
    assert there == sorted(there, reverse=True), "a block has no parent"
    return sum(there)


@pytest.mark.parametrize("staging_bytes", [1, 6 * BLOCK_BYTES, 100 * BLOCK_BYTES])
def test_blocks_arrive_bit_by_bit_equal_in_windows_of_any_size(source, target, staging_bytes):
    with serving(source) as (server, peer), fetching(target, staging_bytes=staging_bytes) as fetcher:
        fetched = fetcher.fetch(names(20), peer, **NOW)
        assert (fetched.num_fetched, fetched.failure) == (20, "")
        assert (num_whole(target), server.stats.sent_blocks_total) == (20, 20)


def test_only_blocks_that_are_missing_are_sent(source, target):
    for number in range(5):
        put(target, number, number - 1 if number else None, time.time_ns() - number)
    with serving(source) as (server, peer), fetching(target) as fetcher:
        fetched = fetcher.fetch(names(20), peer, **NOW)
        assert (fetched.num_present, fetched.num_fetched, server.stats.sent_blocks_total) == (5, 15, 15)
        assert fetcher.fetch(names(20), peer, **NOW).num_present == 20
        assert server.stats.sent_blocks_total == 15


def test_blocks_that_the_peer_lacks_end_a_fetch_without_a_failure(source, target):
    with serving(source) as (_, peer), fetching(target, staging_bytes=4 * BLOCK_BYTES) as fetcher:
        fetched = fetcher.fetch(names(30), peer, **NOW)
        assert (fetched.num_fetched, fetched.failure) == (20, "")
        assert fetcher.fetch(names(30), peer, **NOW).num_present == 20  # and the connection serves the next


def test_blocks_of_another_content_are_not_sent(source, target):
    others = [replace(name, content=b"x" * 32) for name in names(20)]
    with serving(source) as (server, peer), fetching(target) as fetcher:
        assert fetcher.fetch(others, peer, **NOW).num_fetched == 0
        assert server.stats.sent_blocks_total == 0


def test_a_block_that_is_about_to_be_written_is_waited_for(tmp_path, target):
    source = open_slots(tmp_path / "source.kv", 8)
    with serving(source) as (_, peer), fetching(target) as fetcher:
        writing = threading.Timer(0.1, put, (source, 0))
        writing.start()
        assert fetcher.fetch(names(1), peer, wait_s=SOON_S, timeout_s=SOON_S).num_fetched == 1
        begun = time.monotonic()
        assert fetcher.fetch(names(2), peer, wait_s=0.1, timeout_s=SOON_S).num_fetched == 0
        assert 0.1 <= time.monotonic() - begun < 5


def test_one_hundred_cuts_of_the_connection_leave_nothing_wrong(source, tmp_path):
    choose = random.Random(26)
    count = 8
    with serving(source) as (_, peer):
        for number in range(100):
            target = open_slots(tmp_path / f"target-{number}.kv", 32)
            relay = Relay(peer.port, cut_after=choose.randrange(count * BLOCK_BYTES))
            with fetching(target, staging_bytes=4 * BLOCK_BYTES) as fetcher:
                fetched = fetcher.fetch(names(count), replace(peer, port=relay.port), **NOW)
                assert fetched.failure
                assert num_whole(target, count) == fetched.num_fetched < count
                # What is missing comes from where the connection is whole.
                assert fetcher.fetch(names(count), peer, **NOW).num_fetched == count - fetched.num_fetched
                assert num_whole(target, count) == count
            relay.close()
            target.close()
            (tmp_path / f"target-{number}.kv").unlink()


def test_spoiled_bytes_are_noticed_wherever_they_are(source, tmp_path):
    choose = random.Random(3)
    with serving(source) as (_, peer):
        for number in range(10):
            target = open_slots(tmp_path / f"target-{number}.kv", 32)
            relay = Relay(peer.port, spoil_at=choose.randrange(100, 20 * BLOCK_BYTES))
            with fetching(target, staging_bytes=4 * BLOCK_BYTES) as fetcher:
                fetched = fetcher.fetch(names(20), replace(peer, port=relay.port), wait_s=0.0, timeout_s=2.0)
                assert num_whole(target) == fetched.num_fetched < 20
                assert fetched.num_damaged or fetched.failure
            relay.close()


def test_spoiled_bytes_of_a_block_are_counted(source, target):
    with serving(source) as (_, peer), fetching(target) as fetcher:
        relay = Relay(peer.port, spoil_at=5 * BLOCK_BYTES + BLOCK_BYTES // 2)
        fetched = fetcher.fetch(names(20), replace(peer, port=relay.port), **NOW)
        assert (fetched.num_fetched, fetched.num_damaged, fetched.failure) == (5, 1, "a block arrived damaged")
        relay.close()


@pytest.mark.parametrize("harm", [{"stop_after": 25_000}, {"stop_after": 0}, {"pause_s": 0.2}])
def test_a_hanging_or_slow_peer_is_left_at_the_deadline(source, target, harm):
    with serving(source) as (_, peer), fetching(target) as fetcher:
        relay = Relay(peer.port, **harm)
        begun = time.monotonic()
        fetched = fetcher.fetch(names(20), replace(peer, port=relay.port), wait_s=0.0, timeout_s=0.5)
        assert time.monotonic() - begun < SOON_S
        assert fetched.failure
        assert num_whole(target) == fetched.num_fetched < 20
        relay.close()


def test_a_peer_that_is_gone_fails_at_once(target):
    with socket.create_server((HOST, 0)) as unused:
        port = unused.getsockname()[1]
    with fetching(target) as fetcher:
        fetched = fetcher.fetch(names(3), PeerAddress(host=HOST, port=port, key=b"k"), **NOW)
        assert "ConnectionRefusedError" in fetched.failure


def test_peers_without_the_key_get_nothing(source, target):
    with serving(source) as (server, peer):
        with fetching(target) as fetcher:
            fetched = fetcher.fetch(names(20), replace(peer, key=b"guessed"), **NOW)
            assert (fetched.num_fetched, bool(fetched.failure), num_whole(target)) == (0, True, 0)
        for sent in (
            encode(Hello(VERSION, b"", IDENTITY, BLOCK_BYTES)),
            encode(Read([names(1)[0].key], [names(1)[0].content], 0.0)),
            b"\xff" * 100,
            b"GET / HTTP/1.1\r\n\r\n",
        ):
            with socket.create_connection((HOST, peer.port), timeout=SOON_S) as connection:
                connection.sendall(sent)
                assert received(connection) == b""
        assert server.stats.sent_blocks_total == 0


def received(connection):
    """All that comes."""
    data = b""
    try:
        while more := connection.recv(1000):
            data += more
    except ConnectionResetError:
        pass
    return data


def test_blocks_of_other_weights_are_refused(source, target):
    with serving(source) as (_, peer), fetching(target, identity=b"n" * 32) as fetcher:
        fetched = fetcher.fetch(names(3), peer, **NOW)
        assert "blocks of other weights or settings" in fetched.failure


def test_peers_speak_tls_where_the_server_has_a_certificate(source, target):
    own, other = make_certificate(), make_certificate()
    with serving(source, tls=own.server_context()) as (_, peer), fetching(target, make_tls=client_context) as fetcher:
        wrong = fetcher.fetch(names(20), replace(peer, certificate=other.certificate), **NOW)
        assert (wrong.num_fetched, "CERTIFICATE_VERIFY_FAILED" in wrong.failure) == (0, True)
        assert fetcher.fetch(names(20), replace(peer, certificate=own.certificate), **NOW).num_fetched == 20
        assert num_whole(target) == 20


def test_silent_connections_keep_no_peer_out_and_are_bounded(source, target):
    with serving(source, max_unauthenticated=4, hello_timeout_s=60.0) as (server, peer), fetching(target) as fetcher:
        silent = [socket.create_connection((HOST, peer.port)) for _ in range(30)]
        assert fetcher.fetch(names(20), peer, **NOW).num_fetched == 20
        deadline = time.monotonic() + SOON_S
        while server.num_connections > 5 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.num_connections <= 5
        for each in silent:
            each.close()


def test_so_many_peers_are_served_at_once(source, target):
    with serving(source, max_connections=2) as (_, peer):
        greeted = []
        for _ in range(3):
            connection = socket.create_connection((HOST, peer.port))
            connection.sendall(encode(Hello(VERSION, peer.key, IDENTITY, BLOCK_BYTES)))
            greeted.append((connection, receive(connection, FROM_SERVER, 4096, time.monotonic() + SOON_S)))
        assert [answer.reason for _, answer in greeted] == ["", "", "2 peers are connected"]
        for connection, _ in greeted:
            connection.close()


def test_requests_of_too_many_blocks_end_the_connection(source):
    with serving(source) as (server, peer), socket.create_connection((HOST, peer.port)) as connection:
        connection.sendall(encode(Hello(VERSION, peer.key, IDENTITY, BLOCK_BYTES)))
        receive(connection, FROM_SERVER, 4096, time.monotonic() + SOON_S)
        many = MAX_READ_BLOCKS + 1
        connection.sendall(encode(Read([names(1)[0].key] * many, [names(1)[0].content] * many, 0.0)))
        assert received(connection) == b""
        assert server.stats.sent_blocks_total == 0


def test_memory_is_bounded_by_the_buffers_and_not_by_the_prefix(tmp_path):
    source, target = filled_store(tmp_path / "source.kv", 120), open_slots(tmp_path / "target.kv", 128)
    tracemalloc.start()
    with serving(source) as (_, peer), fetching(target, staging_bytes=4 * BLOCK_BYTES, num_fetches=2) as fetcher:
        assert fetcher.fetch(names(120), peer, **NOW).num_fetched == 120
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 30 * BLOCK_BYTES  # records of Python among them; the blocks have four times as many bytes


def test_a_fetch_waits_for_a_buffer_as_long_as_it_may(source, target):
    with serving(source) as (_, peer), fetching(target, num_fetches=1) as fetcher:
        relay = Relay(peer.port, stop_after=0)
        hanging = threading.Thread(
            target=fetcher.fetch, args=(names(20), replace(peer, port=relay.port)), kwargs={"wait_s": 0, "timeout_s": 1}
        )
        hanging.start()
        time.sleep(0.1)
        assert fetcher.fetch(names(20), peer, wait_s=0, timeout_s=0.1).failure == "too many fetches at once"
        hanging.join()
        assert fetcher.fetch(names(20), peer, **NOW).num_fetched == 20
        relay.close()


def test_a_released_transfer_writes_to_its_memory_no_more(source):
    with serving(source) as (_, peer):
        relay = Relay(peer.port, pause_s=0.005)
        agent = TcpTransferAgent(IDENTITY, BLOCK_BYTES)
        region = agent.register_memory(memoryview(bytearray(20 * BLOCK_BYTES)))
        local = [LocalDescriptor(region, number * BLOCK_BYTES) for number in range(20)]
        request = agent.initialize_transfer(
            local, names(20), replace(peer, port=relay.port), wait_s=0.0, timeout_s=SOON_S
        )
        assert agent.poll(request) is TransferState.INITIALIZED
        agent.post(request)
        assert agent.wait(request, 2, SOON_S) >= 2
        agent.release(request)
        assert agent.poll(request) is TransferState.FAILED
        left = bytes(region.memory)
        assert left[:BLOCK_BYTES] == bytes_of(0)
        time.sleep(0.1)
        assert bytes(region.memory) == left
        agent.close()
        relay.close()


def test_memory_that_is_not_registered_is_refused(source):
    agent = TcpTransferAgent(IDENTITY, BLOCK_BYTES)
    region = agent.register_memory(memoryview(bytearray(BLOCK_BYTES)))
    peer = PeerAddress(host=HOST, port=1, key=b"")
    for offset in (-1, 1):
        with pytest.raises(ValueError, match="no registered memory"):
            agent.initialize_transfer([LocalDescriptor(region, offset)], names(1), peer, wait_s=0, timeout_s=1)
    agent.deregister_memory(region)
    with pytest.raises(ValueError, match="no registered memory"):
        agent.initialize_transfer([LocalDescriptor(region, 0)], names(1), peer, wait_s=0, timeout_s=1)
    agent.close()


def test_an_agent_connects_to_so_many_peers(source, target):
    with serving(source) as (_, peer), fetching(target, max_peers=1) as fetcher:
        relay = Relay(peer.port)
        assert fetcher.fetch(names(2), peer, **NOW).num_fetched == 2
        assert fetcher.fetch(names(4), replace(peer, port=relay.port), **NOW).failure == "too many peers are connected"
        relay.close()


def test_blocks_of_a_closed_store_are_missing(source):
    blocks = StoredBlocks(IDENTITY, source)
    blocks.close()
    blocks.close()
    assert not blocks.read(names(1)[0], memoryview(bytearray(BLOCK_BYTES)))
    assert blocks.num_present(names(1)) == 0

import pytest

from rayinfer.access.authenticator import Authenticator
from rayinfer.access.failed_keys import MAX_ADDRESSES, FailedKeys
from rayinfer.access.key_table import KeyTable
from rayinfer.access.rate_limits import RateLimits
from rayinfer.errors import AuthenticationFailed, NotReady, RateLimited


@pytest.fixture
def secret(key_file):
    return key_file.create("alice", tenant="team")


@pytest.fixture
def authenticator(key_file, secret, clock):
    authenticator = Authenticator(RateLimits(lambda _: None, clock), FailedKeys(clock))
    authenticator.keys = KeyTable(key_file.read())
    return authenticator


@pytest.mark.parametrize("header", ["authorization", "x-api-key", "api-key"])
def test_the_key_comes_in_any_of_three_headers(authenticator, secret, header):
    for value in [f"Bearer {secret}", f"bearer  {secret} "] if header == "authorization" else [secret, f" {secret} "]:
        assert authenticator.identify({header: value}, "10.0.0.1").tenant == "team"
    both = {"authorization": "Basic YTpi", "x-api-key": secret}
    assert authenticator.identify(both, "10.0.0.1").key.name == "alice"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, "missing_api_key"),
        ({"authorization": ""}, "missing_api_key"),
        ({"authorization": "Bearer"}, "missing_api_key"),
        ({"authorization": "Bearer  "}, "missing_api_key"),
        ({"authorization": "Basic YTpi"}, "missing_api_key"),
        ({"x-api-key": ""}, "missing_api_key"),
        ({"authorization": "Bearer wrong"}, None),
        ({"authorization": "Bearer " + "x" * 100_000}, None),
        ({"api-key": "\xff\xfe"}, None),
    ],
    ids=str,
)
def test_other_headers_are_refused(authenticator, headers, code):
    with pytest.raises(AuthenticationFailed) as failed:
        authenticator.identify(headers, "10.0.0.1")
    assert failed.value.code == code


def test_nothing_passes_before_the_keys_are_known(clock):
    with pytest.raises(NotReady):
        Authenticator(RateLimits(lambda _: None, clock)).identify({"api-key": "x"}, "10.0.0.1")


def test_an_address_has_twenty_failed_keys_a_minute(authenticator, secret, clock):
    def fail(address):
        authenticator.identify({"api-key": "wrong"}, address)

    for _ in range(20):
        with pytest.raises(AuthenticationFailed):
            fail("10.0.0.1")
    clock.now_s += 20
    with pytest.raises(RateLimited) as limited:
        fail("10.0.0.1")
    assert limited.value.retry_after_s == 40
    with pytest.raises(AuthenticationFailed):
        fail("10.0.0.2")
    assert authenticator.identify({"api-key": secret}, "10.0.0.1").key.name == "alice"  # it may share the address
    clock.now_s += 40
    with pytest.raises(AuthenticationFailed):
        fail("10.0.0.1")


def test_addresses_are_bounded_and_networks_of_ipv6_count_as_one(clock):
    failed = FailedKeys(clock)
    for number in range(3 * MAX_ADDRESSES):
        failed.record(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(failed) == MAX_ADDRESSES
    failed = FailedKeys(clock)
    for host in range(20):
        failed.record(f"2001:db8::{host:x}")
    with pytest.raises(RateLimited):
        failed.record("2001:db8::ffff%eth0")
    failed.record("2001:db8:0:1::1")
    failed.record("not:an:address")

from rayinfer.metrics.service_metrics import ServiceMetrics
from rayinfer.metrics.tenant_counts import MAX_TENANTS, TenantCounts, counts_of_tenant
from support.fakes.virtual_time import FakeClock


def test_the_tokens_and_waits_of_a_tenant_are_counted():
    clock = FakeClock()
    metrics = ServiceMetrics("router-1", clock)
    timer = metrics.request_started("tiny", num_prompt_tokens=7, tenant="alice")
    clock.now += 0.5
    timer.record_dispatch()
    timer.tokens(3)
    timer.finished("length")
    metrics.request_started("tiny", num_prompt_tokens=5).finished("abort")
    counts = metrics.snapshot().tenants
    assert (counts["alice"].prompt_tokens, counts["alice"].generation_tokens, counts["alice"].queue_s) == (7, 3, 0.5)
    assert counts["alice"].finished["length"] == counts["(none)"].finished["abort"] == 1


def test_tenants_beyond_the_limit_share_their_counts():
    tenants: dict[str, TenantCounts] = {}
    for number in range(MAX_TENANTS + 5):
        counts_of_tenant(tenants, f"tenant-{number}").prompt_tokens += 1
    assert len(tenants) == MAX_TENANTS + 1
    assert tenants["(other)"].prompt_tokens == 5
    assert counts_of_tenant(tenants, "tenant-3").prompt_tokens == 1

from rayinfer.benchmark.peers.machine import cpu_flags, memory_read_gb_s, usable_cpus


def test_memory_is_read_at_some_speed():
    assert 0.01 < memory_read_gb_s(2, num_bytes=2**20) < 10_000


def test_the_machine_is_known():
    assert usable_cpus()
    assert cpu_flags()

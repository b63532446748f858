import os

import pytest

from rayinfer.kv_cache.host_memory import available_host_bytes, host_bytes

ALL_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def write(root, **files):
    """Write files below a folder that stands for `/`; in their names `__` is a slash."""
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("meminfo", "kib"),
    [
        ("MemTotal: 900 kB\nMemFree: 100 kB\nMemAvailable: 500 kB\nBuffers: 20 kB\nCached: 300 kB\n", 500),
        ("MemTotal: 900 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 300 kB\nSwapCached: 7 kB\n", 420),
        ("MemTotal: 900 kB\nMemFree: 100 kB\n", 100),
    ],
)
def test_available_memory_is_estimated_where_the_kernel_does_not_report_it(tmp_path, meminfo, kib):
    write(tmp_path, proc__meminfo=meminfo)
    assert available_host_bytes(tmp_path) == kib * 1024


def test_available_memory_is_all_there_is_without_meminfo(tmp_path):
    assert available_host_bytes(tmp_path) == host_bytes(tmp_path) == ALL_BYTES


CGROUP_2 = {
    "proc__self__cgroup": "0::/kubepods/pod1/engine\n",
    "sys__fs__cgroup__kubepods__pod1__memory.max": "4000000\n",
    "sys__fs__cgroup__kubepods__pod1__memory.current": "1500000\n",
    "sys__fs__cgroup__kubepods__pod1__memory.stat": "anon 900000\nactive_file 300000\ninactive_file 200000\n",
    "sys__fs__cgroup__kubepods__pod1__engine__memory.max": "max\n",
    "sys__fs__cgroup__kubepods__pod1__engine__memory.current": "1200000\n",
    "sys__fs__cgroup__kubepods__pod1__engine__memory.stat": "inactive_file 0\n",
}
CGROUP_2_SEEN_FROM_WITHIN = {
    "proc__self__cgroup": "0::/\n",
    "sys__fs__cgroup__memory.max": "4000000\n",
    "sys__fs__cgroup__memory.current": "1500000\n",
    "sys__fs__cgroup__memory.stat": "inactive_file 500000\n",
}
CGROUP_1 = {
    "proc__self__cgroup": "9:pids:/docker/7\n4:memory:/docker/7\n0::/\n",
    "sys__fs__cgroup__memory__memory.limit_in_bytes": "4000000\n",  # the container's own, mounted as the outermost
    "sys__fs__cgroup__memory__memory.usage_in_bytes": "1500000\n",
    "sys__fs__cgroup__memory__memory.stat": "active_file 7\ntotal_active_file 400000\ntotal_inactive_file 100000\n",
}


@pytest.mark.parametrize("files", [CGROUP_2, CGROUP_2_SEEN_FROM_WITHIN, CGROUP_1])
def test_a_container_limits_what_its_machine_has(tmp_path, files):
    write(tmp_path, proc__meminfo="MemAvailable: 900000 kB\n", **files)
    assert available_host_bytes(tmp_path) == 3_000_000
    assert host_bytes(tmp_path) == 4_000_000


def test_a_machine_with_less_than_its_container_may_have_limits_it(tmp_path):
    write(tmp_path, proc__meminfo="MemAvailable: 100 kB\n", **CGROUP_2)
    assert available_host_bytes(tmp_path) == 100 * 1024


def test_a_container_beyond_its_limit_has_nothing_left(tmp_path):
    write(tmp_path, **CGROUP_2 | {"sys__fs__cgroup__kubepods__pod1__memory.current": "9000000\n"})
    assert available_host_bytes(tmp_path) == 0


def test_groups_without_a_limit_or_readable_files_limit_nothing(tmp_path):
    unlimited = CGROUP_2 | {"sys__fs__cgroup__kubepods__pod1__memory.max": "max\n"}
    write(tmp_path, proc__meminfo="MemAvailable: 900 kB\n", **unlimited)
    assert available_host_bytes(tmp_path) == 900 * 1024
    write(tmp_path, **CGROUP_2 | {"sys__fs__cgroup__kubepods__pod1__memory.current": "what?\n"})
    assert available_host_bytes(tmp_path) == 900 * 1024


def test_lines_that_say_nothing_are_left_out(tmp_path):
    write(tmp_path, proc__meminfo="MemAvailable: 100 kB\nX: \n\n", proc__self__cgroup="\ngarbage\n0::/\n")
    assert available_host_bytes(tmp_path) == 100 * 1024

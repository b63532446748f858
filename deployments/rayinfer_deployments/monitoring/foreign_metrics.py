"""Metrics of Prometheus itself and of Ray that dashboards and alerts use beside the service's own."""

from rayinfer.metrics.definition import MetricDefinition, MetricKind


def _foreign(kind: MetricKind, name: str, description: str, *labels: str) -> MetricDefinition:
    return MetricDefinition(name, kind, description, labels, is_per_router=False)


UP = _foreign("gauge", "up", "1 if Prometheus could read a target, else 0.", "job")
SCRAPE_DURATION = _foreign("gauge", "scrape_duration_seconds", "How long a scrape took.", "job")
FIRING_ALERTS = _foreign("gauge", "ALERTS", "1 for each alert.", "alertname", "alertstate", "severity")

# Of Ray's agent on each node (port 8080 of the pods): `rayinfer serve` starts its own Ray without these agents.
NODE_CPU = _foreign("gauge", "ray_node_cpu_utilization", "CPU use of a node, percent.", "ip")
NODE_CPU_COUNT = _foreign("gauge", "ray_node_cpu_count", "CPUs of a node.", "ip")
NODE_MEMORY_USED = _foreign("gauge", "ray_node_mem_used", "Memory in use on a node.", "ip")
NODE_MEMORY_TOTAL = _foreign("gauge", "ray_node_mem_total", "Memory of a node.", "ip")
NODE_SHARED_MEMORY = _foreign("gauge", "ray_node_mem_shared_bytes", "Shared memory in use on a node.", "ip")
NODE_DISK = _foreign("gauge", "ray_node_disk_utilization_percentage", "Disk in use on a node, percent.", "ip")
NODE_RECEIVED = _foreign("gauge", "ray_node_network_receive_speed", "Bytes a second that a node receives.", "ip")
NODE_SENT = _foreign("gauge", "ray_node_network_send_speed", "Bytes a second that a node sends.", "ip")
NODE_GPU = _foreign("gauge", "ray_node_gpus_utilization", "Use of a GPU, percent.", "ip", "GpuIndex")
NODE_GPU_MEMORY = _foreign("gauge", "ray_node_gram_used", "Memory of a GPU in use, MiB.", "ip", "GpuIndex")

PROMETHEUS_METRICS = (UP, SCRAPE_DURATION, FIRING_ALERTS)
GPU_METRICS = (NODE_GPU, NODE_GPU_MEMORY)
RAY_METRICS = (
    NODE_CPU,
    NODE_CPU_COUNT,
    NODE_MEMORY_USED,
    NODE_MEMORY_TOTAL,
    NODE_SHARED_MEMORY,
    NODE_DISK,
    NODE_RECEIVED,
    NODE_SENT,
    *GPU_METRICS,
)

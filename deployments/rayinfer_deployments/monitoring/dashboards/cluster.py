"""Dashboard of the cluster: routers, targets, alerts, and Ray's nodes."""

from rayinfer.metrics import metric_list
from rayinfer.metrics.definition import MetricDefinition
from rayinfer_deployments.monitoring import foreign_metrics
from rayinfer_deployments.monitoring.expressions import Scope
from rayinfer_deployments.monitoring.panels import DASHBOARD, Dashboard, Panel, Query, Row, Unit

ALL = Scope()  # Ray's metrics have a job of their own


def _of_nodes(
    title: str, description: str, unit: Unit, *metrics: tuple[MetricDefinition, str], most: float | None = None
) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        most=most,
        queries=[Query(ALL.largest(metric, ["ip"]), f"{{{{ip}}}} {what}".strip()) for metric, what in metrics],
    )


def _of_gpus(title: str, description: str, unit: Unit, metric: MetricDefinition, most: float | None = None) -> Panel:
    return Panel(
        title=title,
        description=description,
        unit=unit,
        most=most,
        queries=[Query(ALL.largest(metric, ["ip", "GpuIndex"]), "{{ip}} GPU {{GpuIndex}}")],
    )


SERVICE_ROW = Row(
    "Service",
    [
        Panel(
            title="Routers",
            description="Routers whose metrics the latest scrape has.",
            unit="short",
            kind="stat",
            width=4,
            queries=[Query(DASHBOARD.total(metric_list.ROUTER_INFO, ["job"]), "{{job}}")],
        ),
        Panel(
            title="Targets that answer",
            description="Targets of Prometheus that could be read.",
            unit="short",
            kind="stat",
            width=4,
            queries=[Query(f"sum by (job) ({DASHBOARD.series(foreign_metrics.UP)})", "{{job}}")],
        ),
        Panel(
            title="Firing alerts",
            description="Alerts of these rules that fire now; none is good.",
            unit="short",
            width=8,
            queries=[
                Query(
                    "count by (alertname, severity) ("
                    + ALL.series(foreign_metrics.FIRING_ALERTS, alertname="~Rayinfer.*", alertstate="firing")
                    + ")",
                    "{{alertname}} ({{severity}})",
                )
            ],
        ),
        Panel(
            title="Time of a scrape",
            description="How long /metrics took; it holds all routers' metrics.",
            unit="s",
            queries=[Query(DASHBOARD.largest(foreign_metrics.SCRAPE_DURATION, ["job"]), "{{job}}")],
        ),
    ],
)
NODE_ROW = Row(
    "Nodes",
    [
        _of_nodes("CPU", "Use of each node's CPUs.", "percent", (foreign_metrics.NODE_CPU, ""), most=100),
        _of_nodes("CPUs", "CPUs of each node.", "short", (foreign_metrics.NODE_CPU_COUNT, "")),
        _of_nodes(
            "Memory",
            "Memory in use on each node or in each pod, and all of it.",
            "bytes",
            (foreign_metrics.NODE_MEMORY_USED, "used"),
            (foreign_metrics.NODE_MEMORY_TOTAL, "all"),
        ),
        _of_nodes("Shared memory", "/dev/shm in use.", "bytes", (foreign_metrics.NODE_SHARED_MEMORY, "")),
        _of_nodes("Disk", "Use of each node's disks.", "percent", (foreign_metrics.NODE_DISK, ""), most=100),
        _of_nodes(
            "Network",
            "Bytes a second of each node.",
            "Bps",
            (foreign_metrics.NODE_RECEIVED, "received"),
            (foreign_metrics.NODE_SENT, "sent"),
        ),
    ],
)
GPU_ROW = Row(
    "GPUs",
    [
        _of_gpus("GPU", "Use of each GPU.", "percent", foreign_metrics.NODE_GPU, most=100),
        _of_gpus("GPU memory", "Memory of each GPU in use.", "mbytes", foreign_metrics.NODE_GPU_MEMORY),
    ],
)
CLUSTER = Dashboard(
    name="cluster",
    title="rayinfer: cluster",
    description="Routers, targets and alerts; Ray's nodes, where Ray exports its metrics.",
    has_model=False,
    rows=(SERVICE_ROW, NODE_ROW, GPU_ROW),
)

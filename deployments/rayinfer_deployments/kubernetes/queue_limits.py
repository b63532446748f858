"""Limits of Kueue: its quota, and what its webhooks refuse of a Ray cluster."""

from collections.abc import Sequence

from rayinfer_deployments.kubernetes.cluster_settings import QueueSettings
from rayinfer_deployments.kubernetes.pod_settings import HeadSettings, WorkerGroup
from rayinfer_deployments.kubernetes.setting_types import in_bytes

MOST_POD_SETS = 8  # of one workload: the head, each group of workers, and a job's submitter
OWN_POD_SETS = ("head", "submitter")
SUBMITTER_MILLI_CPUS, SUBMITTER_MEMORY = 500, "512Mi"  # of the pod that submits a job, which the quota counts too


def check_queue(
    queue: QueueSettings, head: HeadSettings, workers: Sequence[WorkerGroup], *, is_job: bool, scales: bool
) -> None:
    """Raise ValueError where Kueue would refuse the cluster, or its pods would wait for ever."""
    if scales:
        raise ValueError("queue: Kueue takes no cluster whose number of pods changes: set autoscale_pods to false")
    most = MOST_POD_SETS - 1 - is_job
    if len(workers) > most:
        raise ValueError(
            f"workers: Kueue takes {most} groups of a {'job' if is_job else 'service'}, got {len(workers)}"
        )
    if reserved := [group.name for group in workers if group.name in OWN_POD_SETS]:
        raise ValueError(f"workers: Kueue keeps the name {reserved[0]} for pods of its own: give the group another")
    cpus: float = head.cpus + sum(group.pods * group.cpus for group in workers)
    gpus = sum(group.pods * group.gpus for group in workers)
    memory = in_bytes(head.memory) + sum(group.pods * in_bytes(group.memory) for group in workers)
    if is_job:
        cpus, memory = cpus + SUBMITTER_MILLI_CPUS / 1000, memory + in_bytes(SUBMITTER_MEMORY)
    if cpus > queue.cpus or gpus > queue.gpus or memory > in_bytes(queue.memory):
        takers = "head, workers and submitter" if is_job else "head and workers"
        raise ValueError(
            f"queue: its quota is {queue.cpus} CPUs, {queue.memory} and {queue.gpus} GPUs, and {takers} take {cpus:g}"
            f" CPUs, {memory / 2**30:g}Gi and {gpus} GPUs"
        )

"""Settings of pods: the head's, and those of the groups of workers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from rayinfer_deployments.kubernetes.setting_types import (
    QUANTITY,
    LabelName,
    Labels,
    LabelValue,
    OptionalName,
    Settings,
    in_bytes,
)

LEAST_SHARED_MEMORY = "512Mi"  # the head's; Ray's object store fits into it


class Toleration(Settings):
    """A taint of nodes that pods put up with."""

    key: LabelName | Literal[""] = Field(default="", description="name of the taint; default: any")
    operator: Literal["Equal", "Exists"] = Field(default="Equal", description="Equal: its value is `value`")
    value: LabelValue = Field(default="", description="value of the taint")
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = Field(
        default="", description="effect of the taint; default: any"
    )
    seconds: int | None = Field(
        default=None, ge=0, description="with NoExecute: seconds that a pod stays; default: no end"
    )

    @model_validator(mode="after")
    def _kubernetes_takes_it(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError(f"value={self.value}: operator Exists takes none")
        if self.operator == "Equal" and not self.key:
            raise ValueError("key: operator Equal needs one; for any taint, operator Exists")
        if self.seconds is not None and self.effect != "NoExecute":
            raise ValueError(f"seconds={self.seconds}: for the effect NoExecute only")
        return self


class PodSettings(Settings):
    """The machines that pods run on, and how."""

    node_selector: Labels = Field(default={}, description="labels that the pods' nodes must have")
    tolerations: list[Toleration] = Field(
        default=[], description="taints that its nodes may have, beside NVIDIA's of pods with GPUs"
    )
    priority_class: OptionalName = Field(default="", description="PriorityClass of the pods; default: the cluster's")
    runtime_class: OptionalName = Field(default="", description="RuntimeClass of the pods, such as nvidia")


class HeadSettings(PodSettings):
    """The head's pod: Ray's table and the controller of Serve, and no replicas."""

    cpus: int = Field(default=1, ge=1, description="CPUs of the pod")
    memory: str = Field(default="4Gi", pattern=QUANTITY, description="memory of the pod")

    @model_validator(mode="after")
    def _memory_holds_the_shared_memory(self) -> Self:
        if in_bytes(self.memory) <= in_bytes(LEAST_SHARED_MEMORY):
            raise ValueError(f"memory={self.memory}: {LEAST_SHARED_MEMORY} of it are shared memory")
        return self


class WorkerGroup(PodSettings):
    """Equal pods that hold engines and routers."""

    name: str = Field(default="workers", pattern=r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$", description="name of the group")
    pods: int = Field(default=1, ge=0, description="pods at the start")
    min_pods: int | None = Field(default=None, ge=0, description="fewest pods; default: pods")
    max_pods: int | None = Field(default=None, ge=1, description="most pods; default: pods")
    cpus: int = Field(default=2, ge=1, description="CPUs of each pod")
    memory: str = Field(default="4Gi", pattern=QUANTITY, description="memory of each pod, shared memory included")
    shared_memory: str = Field(default="1Gi", pattern=QUANTITY, description="size of /dev/shm, which counts as memory")
    gpus: int = Field(default=0, ge=0, description="NVIDIA GPUs of each pod")
    spread_over: Literal["kubernetes.io/hostname", "topology.kubernetes.io/zone"] = Field(
        default="kubernetes.io/hostname", description="what the pods are spread over"
    )
    spread_strictly: bool = Field(
        default=False, description="leave a pod waiting rather than put two beside each other"
    )

    @property
    def fewest(self) -> int:
        """Return the fewest pods."""
        return self.pods if self.min_pods is None else self.min_pods

    @property
    def most(self) -> int:
        """Return the most pods."""
        return max(1, self.pods) if self.max_pods is None else self.max_pods

    @model_validator(mode="after")
    def _memory_holds_the_shared_memory(self) -> Self:
        if in_bytes(self.memory) <= in_bytes(self.shared_memory):
            raise ValueError(f"shared_memory={self.shared_memory} does not fit into memory={self.memory}")
        if in_bytes(self.shared_memory) < in_bytes(LEAST_SHARED_MEMORY):
            raise ValueError(f"shared_memory={self.shared_memory}: Ray's object store needs {LEAST_SHARED_MEMORY}")
        return self

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if not self.fewest <= self.pods <= self.most:
            raise ValueError(f"pods={self.pods} does not lie between min_pods={self.fewest} and max_pods={self.most}")
        return self

"""Parts of the file of `rayinfer build` that concern the Kubernetes cluster."""

from ipaddress import ip_network
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rayinfer_deployments.monitoring.objectives import Objectives

QUANTITY = r"^[0-9]+(\.[0-9]+)?(k|M|G|T|Ki|Mi|Gi|Ti)?$"
BYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
LEAST_SHARED_MEMORY = "512Mi"  # the head's; Ray's object store fits into it

PATH = r"^(/data/|[a-z][a-z0-9+]*://)[A-Za-z0-9_./:@%+=-]+$"

# What Kubernetes accepts.
ObjectName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
OptionalName = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")]
Namespace = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")]
HostName = Annotated[str, Field(pattern=r"^(\*\.)?[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?$")]
LabelName = Annotated[
    str, Field(pattern=r"^([a-z0-9][-a-z0-9.]{0,252}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]
LabelValue = Annotated[str, Field(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")]
Labels = dict[LabelName, LabelValue]


def in_bytes(quantity: str) -> float:
    """Return the number of bytes that a quantity names."""
    number = quantity.rstrip("kMGTi")
    return float(number) * BYTES[quantity[len(number) :]]


class _Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HeadSettings(_Settings):
    """The head's pod: Ray's table and the controller of Serve, and no replicas."""

    cpus: int = Field(default=1, ge=1, description="CPUs of the pod")
    memory: str = Field(default="4Gi", pattern=QUANTITY, description="memory of the pod")
    node_selector: Labels = Field(default={}, description="labels that its node must have")

    @model_validator(mode="after")
    def _memory_holds_the_shared_memory(self) -> Self:
        if in_bytes(self.memory) <= in_bytes(LEAST_SHARED_MEMORY):
            raise ValueError(f"memory={self.memory}: {LEAST_SHARED_MEMORY} of it are shared memory")
        return self


class WorkerGroup(_Settings):
    """Equal pods that hold engines and routers."""

    name: str = Field(default="workers", pattern=r"^[a-z]([-a-z0-9]{0,18}[a-z0-9])?$", description="name of the group")
    pods: int = Field(default=1, ge=0, description="pods at the start")
    min_pods: int | None = Field(default=None, ge=0, description="fewest pods; default: pods")
    max_pods: int | None = Field(default=None, ge=1, description="most pods; default: pods")
    cpus: int = Field(default=2, ge=1, description="CPUs of each pod")
    memory: str = Field(default="4Gi", pattern=QUANTITY, description="memory of each pod, shared memory included")
    shared_memory: str = Field(default="1Gi", pattern=QUANTITY, description="size of /dev/shm, which counts as memory")
    gpus: int = Field(default=0, ge=0, description="NVIDIA GPUs of each pod")
    node_selector: Labels = Field(default={}, description="labels that its nodes must have")
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


class StorageSettings(_Settings):
    """Source of the model files: `/models` in every worker, and the cache folder beside it."""

    kind: Literal["cache", "pvc", "init", "bucket"] = Field(
        default="cache",
        description="cache: engines load into a folder of the pod; pvc: a claim at /models; init: a container fills"
        " /models before Ray starts; bucket: a CSI driver mounts one at /models",
    )
    cache_size: str = Field(default="10Gi", pattern=QUANTITY, description="size of the cache folder of each pod")
    claim: OptionalName = Field(
        default="", description="pvc: an existing claim, readable by many; default: one is made"
    )
    claim_size: str = Field(default="50Gi", pattern=QUANTITY, description="pvc: size of the claim that is made")
    storage_class: OptionalName = Field(
        default="", description="pvc: class of the claim that is made; default: the cluster's own"
    )
    init_command: list[str] = Field(default=[], description="init: command that fills /models, in the service's image")
    csi_driver: str = Field(
        default="", description="bucket: name of the CSI driver, such as gcsfuse.csi.storage.gke.io"
    )
    csi_attributes: dict[str, str] = Field(
        default={}, description="bucket: the driver's attributes, such as bucketName"
    )

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> Self:
        if self.kind == "init" and not self.init_command:
            raise ValueError("init_command: storage of kind init needs one")
        if self.kind == "bucket" and not self.csi_driver:
            raise ValueError("csi_driver: storage of kind bucket needs one")
        if self.kind != "init" and self.init_command:
            raise ValueError(f"init_command: storage of kind {self.kind} takes none")
        if self.kind != "bucket" and (self.csi_driver or self.csi_attributes):
            raise ValueError(f"csi_driver: storage of kind {self.kind} takes none")
        return self


class AuthSettings(_Settings):
    """Secrets that must exist; they are never in the manifests."""

    api_keys_secret: ObjectName = Field(
        default="rayinfer-api-keys", description="Secret whose key `keys` has the clients' API keys"
    )
    ray_token_secret: OptionalName = Field(
        default="", description="Secret whose key `auth_token` is Ray's token; default: KubeRay makes one"
    )


class HighAvailabilitySettings(_Settings):
    """Ray's table in Redis."""

    redis_address: str = Field(
        default="",
        pattern=r"^((rediss?://)?[A-Za-z0-9.-]+:[0-9]{1,5})?$",
        description="address of a Redis of yours, host:port; default: one is started",
    )
    redis_password_secret: ObjectName = Field(
        default="rayinfer-redis", description="Secret whose key `password` is the Redis's password"
    )
    redis_image: str = Field(default="redis:7.4", description="image of the Redis that is started")
    redis_storage: str = Field(default="1Gi", pattern=QUANTITY, description="size of its volume")


class UpgradeSettings(_Settings):
    """Replacement of the pods where a change needs it; a change of `app` alone keeps them."""

    strategy: Literal["NewCluster", "NewClusterWithIncrementalUpgrade", "None"] = Field(
        default="NewCluster",
        description="NewCluster needs twice the GPUs for a while; an incremental upgrade needs a share of them more,"
        " and a Gateway; None keeps the old pods",
    )
    max_surge_percent: int = Field(
        default=20, ge=1, le=100, description="capacity that the new cluster may add at once"
    )
    step_size_percent: int = Field(default=10, ge=1, le=100, description="share of the requests that moves at once")
    interval_s: int = Field(default=30, ge=1, description="seconds between two moves")
    gateway_class: ObjectName = Field(default="istio", description="GatewayClass of the Gateway that KubeRay makes")
    delete_old_after_s: int = Field(
        default=0, ge=0, le=604_800, description="seconds for which the old cluster stays; at least a drain"
    )


class NetworkPolicySettings(_Settings):
    """Network traffic that is allowed; pods of the service reach each other."""

    client_namespaces: list[Namespace] = Field(
        default=["default"], description="namespaces whose pods may send requests"
    )
    operator_namespace: Namespace = Field(default="kuberay-system", description="namespace of the KubeRay operator")
    monitoring_namespace: Namespace = Field(default="monitoring", description="namespace of Prometheus")
    egress_cidrs: list[str] = Field(
        default=["0.0.0.0/0"], description="networks that may be reached by HTTPS, for model downloads; none: []"
    )

    @field_validator("egress_cidrs")
    @classmethod
    def _egress_is_to_networks(cls, cidrs: list[str]) -> list[str]:
        for cidr in cidrs:
            try:
                ip_network(cidr)
            except ValueError:
                raise ValueError(f"{cidr} is no network such as 10.0.0.0/8") from None
        return cidrs


class IngressSettings(_Settings):
    """Requests from outside, by the Gateway API."""

    gateway: ObjectName = Field(description="name of the Gateway")
    gateway_namespace: OptionalName = Field(default="", description="namespace of the Gateway; default: the service's")
    hostnames: list[HostName] = Field(default=[], description="host names of the service; default: the Gateway's")
    inference_pool: bool = Field(
        default=False, description="have an endpoint picker choose the pod, by an InferencePool"
    )
    endpoint_picker: ObjectName = Field(default="rayinfer-epp", description="Service of the endpoint picker")
    picker_fails_open: bool = Field(default=True, description="requests go on without the picker when it is lost")


class BatchSettings(_Settings):
    """Offline inference over a file; a retry continues where the last attempt ended."""

    input: str = Field(pattern=PATH, description="file of rows; a path below /data or s3://...")
    output: str = Field(pattern=PATH, description="file of results; the same scheme")
    workers: int = Field(default=2, ge=2, description="engines, each an actor on a worker")
    prompt_template: str = Field(default="", description="prompt of a row, such as 'Translate: {text}'")
    claim: ObjectName = Field(default="rayinfer-data", description="claim at /data, which outlives attempts")
    retries: int = Field(default=3, ge=0, description="further attempts, each on a new cluster")
    deadline_s: int = Field(default=86_400, ge=60, le=31_536_000, description="longest time of the job")
    ttl_s: int = Field(default=600, ge=0, le=31_536_000, description="seconds for which the cluster stays after it")

    @model_validator(mode="after")
    def _files_differ(self) -> Self:
        if self.input == self.output:
            raise ValueError("input and output are one file")
        return self


class QueueSettings(_Settings):
    """Kueue: the job or service starts when its quota is free."""

    name: str = Field(default="rayinfer", pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", description="LocalQueue")
    cpus: int = Field(default=16, ge=1, description="quota of CPUs")
    memory: str = Field(default="64Gi", pattern=QUANTITY, description="quota of memory")
    gpus: int = Field(default=0, ge=0, description="quota of GPUs")
    node_labels: Labels = Field(default={}, description="labels of the nodes that the quota is for")


class KserveSettings(_Settings):
    """KServe: a pod runs `rayinfer serve` and speaks the v2 protocol."""

    model_format: str = Field(default="rayinfer", min_length=1, description="format by which the runtime is chosen")
    storage_uri: str = Field(default="", description="URL from which KServe loads the model; default: app's model")
    min_replicas: int = Field(default=1, ge=0, description="fewest pods")
    max_replicas: int = Field(default=3, ge=1, description="most pods")

    @model_validator(mode="after")
    def _bounds_are_in_order(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} is above max_replicas={self.max_replicas}")
        return self


class MonitoringSettings(_Settings):
    """Objects of the Prometheus operator, and dashboards as ConfigMaps for Grafana's sidecar."""

    objectives: Objectives = Field(default=Objectives(), description="what burn rates and error budgets are of")
    interval_s: int = Field(default=15, ge=1, le=60, description="seconds between two scrapes")
    labels: Labels = Field(
        default={}, description="labels by which Prometheus chooses monitors and rules, such as release"
    )
    dashboard_label: str = Field(
        default="grafana_dashboard", min_length=1, description="label by which Grafana's sidecar finds dashboards"
    )
    metrics_key_secret: OptionalName = Field(
        default="", description="with keys: Secret whose entry `key` is one with the scope metrics"
    )


Manifest = dict[str, Any]

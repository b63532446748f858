"""Parts of the file of `rayinfer build` that concern the Kubernetes cluster."""

from ipaddress import ip_network
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from rayinfer_deployments.kubernetes.setting_types import (
    PORT,
    QUANTITY,
    Cidr,
    HostName,
    Labels,
    Namespace,
    ObjectName,
    OptionalName,
    Settings,
)
from rayinfer_deployments.monitoring.objectives import Objectives

PATH = r"^(/data/|[a-z][a-z0-9+]*://)[A-Za-z0-9_./:@%+=-]+$"


class StorageSettings(Settings):
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
    batches_claim: OptionalName = Field(
        default="",
        description="existing claim for app.batches_folder; default: with kind pvc the folder batches of its claim",
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


class AuthSettings(Settings):
    """Secrets that must exist; they are never in the manifests."""

    api_keys_secret: ObjectName = Field(
        default="rayinfer-api-keys", description="Secret whose key `keys` has the clients' API keys"
    )
    ray_token_secret: OptionalName = Field(
        default="", description="Secret whose key `auth_token` is Ray's token; default: KubeRay makes one"
    )


class HighAvailabilitySettings(Settings):
    """Ray's table in Redis."""

    redis_address: str = Field(
        default="",
        pattern=rf"^((rediss?://)?[A-Za-z0-9.-]+:{PORT})?$",
        description="address of a Redis of yours, host:port; default: one is started",
    )
    redis_password_secret: ObjectName = Field(
        default="rayinfer-redis", description="Secret whose key `password` is the Redis's password"
    )
    redis_image: str = Field(default="redis:7.4", description="image of the Redis that is started")
    redis_storage: str = Field(default="1Gi", pattern=QUANTITY, description="size of its volume")


class UpgradeSettings(Settings):
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

    @model_validator(mode="after")
    def _steps_have_room(self) -> Self:
        if self.step_size_percent > self.max_surge_percent:
            raise ValueError(
                f"step_size_percent={self.step_size_percent} is above max_surge_percent={self.max_surge_percent}:"
                " requests would move to capacity that is not there"
            )
        return self


class NetworkPolicySettings(Settings):
    """Network traffic that is allowed; pods of the service reach each other."""

    client_namespaces: list[Namespace] = Field(
        default=["default"], description="namespaces whose pods may send requests"
    )
    operator_namespace: Namespace = Field(default="kuberay-system", description="namespace of the KubeRay operator")
    monitoring_namespace: Namespace = Field(default="monitoring", description="namespace of Prometheus")
    egress_cidrs: list[Cidr] = Field(
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


class IngressSettings(Settings):
    """Requests from outside, by the Gateway API."""

    gateway: ObjectName = Field(description="name of the Gateway")
    gateway_namespace: OptionalName = Field(default="", description="namespace of the Gateway; default: the service's")
    hostnames: list[HostName] = Field(default=[], description="host names of the service; default: the Gateway's")
    inference_pool: bool = Field(
        default=False, description="have an endpoint picker choose the pod, by an InferencePool"
    )
    endpoint_picker: ObjectName = Field(default="rayinfer-epp", description="Service of the endpoint picker")
    picker_fails_open: bool = Field(default=True, description="requests go on without the picker when it is lost")


class BatchSettings(Settings):
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


class QueueSettings(Settings):
    """Kueue: the job or service starts when its quota is free."""

    name: str = Field(default="rayinfer", pattern=r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$", description="LocalQueue")
    cpus: int = Field(default=16, ge=1, description="quota of CPUs")
    memory: str = Field(default="64Gi", pattern=QUANTITY, description="quota of memory")
    gpus: int = Field(default=0, ge=0, description="quota of GPUs")
    node_labels: Labels = Field(default={}, description="labels of the nodes that the quota is for")


class KserveSettings(Settings):
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


class MonitoringSettings(Settings):
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

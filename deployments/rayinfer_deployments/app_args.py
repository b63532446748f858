"""Arguments of `build_llm_app`: the models to serve and the router's limits, checked before anything is started."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import PurePath
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, ValidationError, field_validator, model_validator

from rayinfer.access.api_key import environment_keys
from rayinfer.batches.records import BatchLimits
from rayinfer.config import EngineConfig, default_key_file, environment_api_keys
from rayinfer.errors import ConfigError
from rayinfer.images.fetching.media_settings import media_settings
from rayinfer.prediction_cache.cache_settings import DEFAULT_CACHE_BYTES, PredictionCacheSettings, checked_url
from rayinfer.routing.autoscaling_settings import AutoscalingSettings
from rayinfer.routing.limits import RouterLimits
from rayinfer.routing.roles.settings import RoleSettings
from rayinfer.servers.access.web_origins import is_loopback
from rayinfer.servers.kserve.example_models import EXAMPLE_NAMES
from rayinfer.servers.request_bounds import DEFAULT_MAX_BODY_BYTES, MAX_BODY_BYTES
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.setting_names import describe_validation_error
from rayinfer.tool_calls.formats import ToolFormatName
from rayinfer.traces.generation_span import checked_endpoint
from rayinfer_deployments.engine.rank_placement import ONE_NODE, PlacementStrategy, ranks_per_bundle
from rayinfer_deployments.router.access_settings import AccessSettings
from rayinfer_deployments.router.adapters.adapter_settings import AdapterArgs, AdapterServiceArgs
from rayinfer_deployments.router.batch_owner_actor import BatchSettings
from rayinfer_deployments.router.connection_limits import DEFAULT_CONNECTION_LIMITS, ConnectionLimits
from rayinfer_deployments.router.tls import HttpTlsFiles

DEFAULT_BATCH_LIMITS = BatchLimits()

ENGINE_NUM_CPUS = 0.5  # that Ray sets aside for an engine: it takes what the machine has, whatever that is
REPLICA_NUM_CPUS = 0.05  # and for what watches it


class ModelArgs(AdapterArgs):
    """One model: its engine's settings, and the number of its engines or the bounds of that number."""

    name: str = Field("", description="name of the model in the API; default: the last part of `model` for a path")
    tokenizer: str = Field(
        "",
        description="where routers read the tokenizer and the chat template, as `model` is written (default: `model`)",
    )
    tool_format: ToolFormatName | None = Field(
        None, description="format of the model's tool calls; default: what its chat template shows"
    )
    num_replicas: int = Field(1, ge=1, le=1024, description="engines that serve the model")
    autoscaling: AutoscalingSettings | None = Field(
        None,
        description="bounds and objectives by which the number of engines follows the load, instead of a fixed one",
    )
    roles: RoleSettings | None = Field(
        None,
        description="prefill engines, which compute long prompts, and decode engines, which continue their streams, as"
        " prefill=1,decode=2; needs kv_store_gib",
    )
    num_cpus: float | None = Field(
        None, ge=0, description="CPUs that Ray sets aside for each process of an engine; default: 0.5 for all of them"
    )
    num_gpus: float = Field(
        0.0,
        ge=0,
        description="GPUs that Ray sets aside for each process of an engine; with several processes (ranks) 1, or 0 to"
        " compute on the CPU",
    )
    placement_group_strategy: PlacementStrategy = Field(
        ONE_NODE,
        description="nodes of an engine's ranks: one (STRICT_PACK), few (PACK), or one for each stage, or for each rank"
        " where there are no stages, if possible (SPREAD) or always (STRICT_SPREAD)",
    )
    node_labels: list[dict[str, str]] = Field(
        [],
        description="Ray labels of an engine's nodes: one mapping for all of them, or one for each stage or rank that"
        " is placed",
    )
    resources: dict[str, Annotated[float, Field(gt=0)]] = Field(
        {},
        description="other Ray resources that an engine takes of its node, or of its first one, by their names in"
        " `ray start --resources`: a node with one of them holds one engine",
    )
    drain_timeout_s: float = Field(
        120.0, ge=0, le=86_400, description="seconds for an engine's requests to finish when it is removed"
    )
    revision: str = Field(
        "", description="any text; with another one the model's engines are replaced, for weights that changed in place"
    )
    surge_percent: int | None = Field(
        None,
        ge=0,
        le=100,
        description="engines beyond num_replicas while they are replaced, in percent of it; "
        "default: 100 for a single engine without a GPU and where autoscaling settles the number, else 0",
    )

    @property
    def served_name(self) -> str:
        """Return the model's name in the API."""
        if self.name:
            return self.name
        is_path = self.model.startswith((".", "/", "~"))
        return PurePath(self.model).name.removesuffix(".gguf") if is_path else self.model

    @property
    def tokenizer_source(self) -> str:
        """Return the source of the tokenizer and the chat template."""
        return self.tokenizer or self.model

    @property
    def num_ranks(self) -> int:
        """Return the number of processes of each engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def ranks_per_bundle(self) -> int:
        """Return how many of them are placed together."""
        return ranks_per_bundle(self.placement_group_strategy, self.tensor_parallel_size, self.pipeline_parallel_size)

    @property
    def num_cpus_per_rank(self) -> float:
        """Return the CPUs that Ray reserves for each of them."""
        return round(ENGINE_NUM_CPUS / self.num_ranks, 4) if self.num_cpus is None else self.num_cpus

    @property
    def surge(self) -> int:
        """Return the percentage of engines allowed beyond `num_replicas` while they are replaced."""
        if self.surge_percent is not None:
            return self.surge_percent
        # Two or more stand in for each other; a GPU that is free for a moment only is rare.
        return 100 if (self.autoscaling or self.num_replicas == 1) and not self.num_gpus else 0

    @property
    def fewest_replicas(self) -> int:
        """Return the smallest possible number of engines."""
        return self.num_replicas if self.autoscaling is None else self.autoscaling.min_replicas

    @property
    def most_replicas(self) -> int:
        """Return the greatest possible number of engines."""
        return self.num_replicas if self.autoscaling is None else self.autoscaling.max_replicas

    @model_validator(mode="after")
    def _number_is_settled_once(self) -> "ModelArgs":
        if self.autoscaling is not None and "num_replicas" in self.model_fields_set:
            raise ValueError("num_replicas and autoscaling exclude each other: give one of them")
        return self

    @model_validator(mode="after")
    def _roles_have_a_store(self) -> Self:
        if self.roles is not None and self.kv_store_gib is None:
            raise ValueError("roles need kv_store_gib: prefill engines hand blocks over through that store")
        if self.roles is not None and self.most_replicas < 2:
            raise ValueError("roles need two engines or more: give num_replicas")
        return self

    @model_validator(mode="after")
    def _ranks_share_no_gpu(self) -> Self:
        if self.num_ranks > 1 and self.num_gpus not in (0, 1):
            raise ValueError(
                f"num_gpus must be 1 for each of the {self.num_ranks} ranks of an engine, or 0, got {self.num_gpus:g}"
            )
        return self

    @model_validator(mode="after")
    def _labels_match_the_bundles(self) -> Self:
        num_placed = self.num_ranks // self.ranks_per_bundle
        if len(self.node_labels) not in (0, 1, num_placed):
            raise ValueError(
                f"node_labels must be one mapping, or one for each of the {num_placed} stages or ranks that are placed,"
                f" got {len(self.node_labels)}"
            )
        return self

    def engine_config(self) -> EngineConfig:
        """Return the engine's settings."""
        settings = {name: getattr(self, name) for name in EngineConfig.model_fields}
        return EngineConfig(**settings | {"kv_transfer": self.kv_transfer or self.roles is not None})


class LLMAppArgs(AdapterServiceArgs):
    """The whole application; unknown keys are refused, in every model too."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    models: list[ModelArgs] = Field(min_length=1, description="the models to serve, all under one address")
    limits: RouterLimits = Field(default=RouterLimits(), description="how each model's requests wait")
    request_limits: RequestLimits = Field(default=RequestLimits(), description="what one request may ask for")
    trust_request_chat_template: bool = Field(
        False, description="render chat templates that requests bring: programs, so only for clients that are trusted"
    )
    max_body_bytes: int = Field(DEFAULT_MAX_BODY_BYTES, ge=1024, le=MAX_BODY_BYTES, description="largest request body")
    request_timeout_s: float | None = Field(None, gt=0, description="longest time for one request; more ends it")
    enable_engine_control: bool = Field(
        False,
        description="paths that pause, drain, scale and reload engines: for keys with the scope operate, without keys "
        "for clients on the same machine",
    )
    trust_tenant_header: bool = Field(
        False, description="take a request's tenant from x-tenant-id; for services behind a gateway that sets it"
    )
    trace_requests: bool = Field(
        True, description="keep the events of each request for ten minutes, for GET /v1/requests/{id}/trace"
    )
    trace_prompts: bool = Field(
        False, description="keep the begin of prompts with the events, for GET /v1/requests of the same tenant"
    )
    control_socket: str | None = Field(
        None, description="socket of the process that runs operators' commands, which `rayinfer serve` sets"
    )
    otlp_traces_endpoint: str | None = Field(
        None, description="URL that gets a span of each generation by OTLP over HTTP; needs rayinfer[otel]"
    )
    prediction_cache_bytes: int = Field(
        DEFAULT_CACHE_BYTES, ge=0, description="memory of each router for the results of predictors; 0: no cache"
    )
    prediction_cache_url: str | None = Field(
        None, description="Redis that keeps them too, redis://... or rediss://...; needs rayinfer[redis]"
    )
    prediction_cache_secret_file: str | None = Field(
        None, description="file with a secret that signs what is in Redis, the same on every node"
    )
    batches_folder: str | None = Field(
        None,
        description="folder of files and batches (/v1/files, /v1/batches) on the head node; default: none",
    )
    max_batch_file_bytes: int = Field(DEFAULT_BATCH_LIMITS.max_file_bytes, ge=1024, description="largest file")
    max_batch_requests: int = Field(DEFAULT_BATCH_LIMITS.max_requests, ge=1, description="requests of one batch")
    max_open_batch_requests: int = Field(
        DEFAULT_BATCH_LIMITS.max_open_requests, ge=1, description="requests of all open batches of a tenant"
    )
    max_stored_file_bytes: int = Field(
        DEFAULT_BATCH_LIMITS.max_stored_bytes, ge=1024, description="size of all files of a tenant"
    )
    api_keys: str | None = Field(
        None,
        description="file of API keys, which `rayinfer keys` writes; without one, and without RAYINFER_API_KEYS, "
        "the service is open",
    )
    open_load_metrics: bool = Field(
        False,
        description="answer GET /metrics/load without a key: how much runs and waits, without names, for an endpoint"
        " picker, which sends none",
    )
    price_per_engine_hour: float = Field(0.0, ge=0, description="price by which usage is shown as cost")
    access_log: str | None = Field(None, description="file that gets a line of JSON for each request, without prompts")
    cors_origins: list[str] = Field([], description="origins of web pages that may use the service; * for all")
    allowed_hosts: list[str] = Field(
        [], description="names by which browsers may reach a service without keys, beside addresses and localhost"
    )
    allowed_media_domains: list[str] = Field([], description="hosts that images of requests may be fetched from")
    allow_private_media: bool = Field(False, description="let these hosts be in private networks, as in an intranet")
    tls_cert: str | None = Field(None, description="certificate of the routers' own port (PEM, with its chain)")
    tls_key: str | None = Field(None, description="key of that certificate (PEM)")
    tls_client_ca: str | None = Field(None, description="authorities of the certificates that clients must have (PEM)")
    with_examples: bool = Field(
        False, description=f"serve the tensor models {' and '.join(EXAMPLE_NAMES)} as well, for clients' own examples"
    )
    listen_host: str = Field(
        "127.0.0.1", description="address on which the router listens itself, with listen_port or grpc_port"
    )
    listen_port: int | None = Field(
        None, ge=1, le=65535, description="port on which the router listens itself; default: only Serve's proxy listens"
    )
    grpc_port: int | None = Field(
        None, ge=1, le=65535, description="port on which the router answers gRPC; default: none"
    )
    max_connections: int = Field(
        DEFAULT_CONNECTION_LIMITS.max_connections, ge=1, description="connections to a router's own port (listen_port)"
    )
    max_connections_per_address: int = Field(
        DEFAULT_CONNECTION_LIMITS.max_connections_per_address, ge=1, description="connections to it from one address"
    )
    max_idle_connections: int = Field(
        DEFAULT_CONNECTION_LIMITS.max_idle_connections,
        ge=1,
        description="connections to it without a request in flight",
    )
    max_unfinished_requests: int = Field(
        DEFAULT_CONNECTION_LIMITS.max_unfinished_requests,
        ge=1,
        description="requests to it with an incomplete head or body",
    )
    num_routers: int = Field(1, ge=1, le=64, description="routers that share the connections, each with its own queue")
    router_on_every_node: bool = Field(
        False, description="a router on each node that has router_num_cpus, instead of num_routers of them"
    )
    router_num_cpus: float = Field(0.1, ge=0, description="CPUs that Ray sets aside for the router's process")

    @model_validator(mode="after")
    def _tls_is_complete(self) -> "LLMAppArgs":
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key need each other")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ValueError("tls_client_ca needs tls_cert and tls_key")
        if self.tls_cert is not None and self.listen_port is None:
            raise ValueError("tls_cert is for the routers' own port: it needs listen_port, which a proxy excludes")
        return self

    @property
    def fewest_routers(self) -> int:
        """Return the smallest possible number of routers."""
        return 1 if self.router_on_every_node else self.num_routers

    def access_settings(self) -> AccessSettings:
        """Return the routers' settings of keys, TLS and the access log."""
        has_tls = self.tls_cert is not None and self.tls_key is not None
        return AccessSettings(
            key_file=self.api_keys,
            price_per_engine_hour=self.price_per_engine_hour,
            log=self.access_log,
            cors_origins=tuple(self.cors_origins),
            allowed_hosts=tuple(self.allowed_hosts),
            media=media_settings(self.allowed_media_domains, allows_private=self.allow_private_media),
            is_local=self.listen_port is not None and is_loopback(self.listen_host),
            trace_prompts=self.trace_prompts,
            opens_load=self.open_load_metrics,
            control_socket=self.control_socket,
            tls=HttpTlsFiles(certificate=self.tls_cert or "", key=self.tls_key or "", client_ca=self.tls_client_ca)
            if has_tls
            else None,
        )

    def prediction_cache_settings(self) -> PredictionCacheSettings:
        """Return the routers' settings of the cache of predictions."""
        return PredictionCacheSettings(
            max_bytes=self.prediction_cache_bytes,
            url=self.prediction_cache_url,
            secret_file=self.prediction_cache_secret_file,
        )

    def batch_settings(self) -> BatchSettings | None:
        """Return the routers' settings of files and batches."""
        if self.batches_folder is None:
            return None
        limits = BatchLimits(
            max_file_bytes=self.max_batch_file_bytes,
            max_requests=self.max_batch_requests,
            max_open_requests=self.max_open_batch_requests,
            max_stored_bytes=self.max_stored_file_bytes,
        )
        return BatchSettings(folder=self.batches_folder, limits=limits)

    def connection_limits(self) -> ConnectionLimits:
        """Return the connection limits of the routers' own port."""
        return ConnectionLimits(**{field.name: getattr(self, field.name) for field in fields(ConnectionLimits)})

    @field_validator("otlp_traces_endpoint")
    @classmethod
    def _spans_have_an_endpoint(cls, endpoint: str | None) -> str | None:
        return None if endpoint is None else checked_endpoint(endpoint)

    @field_validator("prediction_cache_url")
    @classmethod
    def _predictions_have_a_redis(cls, url: str | None) -> str | None:
        return None if url is None else checked_url(url)

    @model_validator(mode="after")
    def _redis_has_a_cache_in_front(self) -> Self:
        if self.prediction_cache_url is not None and not self.prediction_cache_bytes:
            raise ValueError("prediction_cache_url needs prediction_cache_bytes above 0")
        return self

    @model_validator(mode="after")
    def _names_differ(self) -> "LLMAppArgs":
        names = [name for model in self.models for name in (model.served_name, *model.lora_modules)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"every model and adapter needs a name of its own, got twice: {', '.join(twice)}")
        if self.with_examples and (taken := sorted(set(names) & set(EXAMPLE_NAMES))):
            raise ValueError(f"with_examples has a model {taken[0]!r} of its own: give yours another name")
        return self

    @model_validator(mode="after")
    def _number_of_routers_is_settled_once(self) -> Self:
        if self.router_on_every_node and self.num_routers != 1:
            raise ValueError("router_on_every_node and num_routers exclude each other: give one of them")
        return self

    @model_validator(mode="after")
    def _ports_differ(self) -> "LLMAppArgs":
        if self.grpc_port is not None and self.grpc_port == self.listen_port:
            raise ValueError(f"grpc_port and listen_port must differ, got {self.grpc_port} for both")
        return self


def with_environment_keys(args: LLMAppArgs) -> LLMAppArgs:
    """Have keys asked for where the environment holds some, with the default file for more."""
    if args.api_keys is not None or not environment_keys(environment_api_keys()):
        return args
    return args.model_copy(update={"api_keys": str(default_key_file())})


def llm_app_args(settings: Mapping[str, Any]) -> LLMAppArgs:
    """Check settings that come from outside; raises ConfigError that names every one at fault."""
    try:
        return LLMAppArgs(**settings)
    except ValidationError as error:
        raise ConfigError(describe_validation_error(error)) from None

"""All metrics of a service, under the names of vLLM's and TGI's dashboards and its own.

Families are made from these definitions, and dashboards and alerts name metrics by them only.
"""

from rayinfer.metrics.definition import MetricDefinition, of_engine, of_model, of_router

# Of engines.
NUM_RUNNING = of_engine("gauge", "vllm:num_requests_running", "Requests that are generating.")
KV_CACHE_USAGE = of_engine(
    "gauge", "vllm:kv_cache_usage_perc", "Share of KV blocks or window pages with readers, 0 to 1."
)
GPU_CACHE_USAGE = of_engine("gauge", "vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc under its earlier name.")
KV_BLOCKS_USED = of_engine("gauge", "rayinfer_kv_blocks_used", "KV blocks with readers.")
KV_BLOCKS_TOTAL = of_engine("gauge", "rayinfer_kv_blocks_total", "KV blocks of the pool.")
KV_WINDOW_PAGES_USED = of_engine(
    "gauge", "rayinfer_kv_window_pages_used", "Pages with readers, of sliding-window layers with a pool of their own."
)
KV_WINDOW_PAGES_TOTAL = of_engine("gauge", "rayinfer_kv_window_pages_total", "Pages of that pool; 0: there is none.")
TGI_BATCH_SIZE = of_engine("gauge", "tgi_batch_current_size", "Requests that are generating.")
NUM_PREEMPTIONS = of_engine("counter", "vllm:num_preemptions", "Requests that lost their blocks to others.")
PREFIX_CACHE_QUERIES = of_engine("counter", "vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
PREFIX_CACHE_HITS = of_engine("counter", "vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
SPECULATIVE_DRAFTS = of_engine(
    "counter", "vllm:spec_decode_num_drafts", "Drafts of next tokens that steps verified, one a request and step."
)
SPECULATIVE_DRAFT_TOKENS = of_engine("counter", "vllm:spec_decode_num_draft_tokens", "Tokens of these drafts.")
SPECULATIVE_ACCEPTED_TOKENS = of_engine(
    "counter", "vllm:spec_decode_num_accepted_tokens", "Those that were the tokens chosen there."
)
STEPS = of_engine("counter", "rayinfer_steps", "Steps of the engine.")
STEP_TOKENS = of_engine("histogram", "vllm:iteration_tokens_total", "Tokens of a step.")
SLEEP_STATE = of_engine("gauge", "vllm:engine_sleep_state", "1 in the engine's state, else 0.", "sleep_state")
CACHE_CONFIG = of_engine("gauge", "vllm:cache_config_info", "Settings of the KV cache; always 1.")
STAGE_IDLE_SHARE = of_engine(
    "gauge",
    "rayinfer_pipeline_stage_idle_share",
    "Share of an engine's time with work so far in which a stage of its pipeline waited for others, 0 to 1.",
    "stage",
)
KV_STORE_HITS = of_engine(
    "counter", "rayinfer_kv_store_hits", "Prompt tokens loaded from the machine's KV block store, by tier.", "tier"
)
KV_STORE_BLOCKS = of_engine(
    "counter",
    "rayinfer_kv_store_blocks",
    "KV blocks of an engine that the machine's store got, evicted, dropped, or found damaged.",
    "event",
)
KV_STORE_BYTES = of_engine(
    "gauge",
    "rayinfer_kv_store_bytes",
    "Bytes of blocks in the machine's KV block store, by tier; engines of a model on a machine report the same store.",
    "tier",
)

KV_TRANSFER_BLOCKS = of_engine(
    "counter",
    "rayinfer_kv_transfer_blocks",
    "KV blocks that an engine's process fetched from other machines, sent to them, or got damaged.",
    "event",
)
KV_FETCHES = of_engine(
    "counter", "rayinfer_kv_fetches", "Requests that waited for KV blocks of another engine, by outcome.", "outcome"
)
KV_FETCH_SECONDS = of_engine("counter", "rayinfer_kv_fetch_seconds", "Seconds for which those requests waited.")

IMAGE_QUERIES = of_engine("counter", "vllm:mm_cache_queries", "Images of requests that an engine has added.")
IMAGE_CACHE_HITS = of_engine(
    "counter", "vllm:mm_cache_hits", "Those whose embeddings an earlier request had: they cost no encoding."
)
IMAGE_ENCODINGS = of_engine("counter", "rayinfer_image_encodings", "Images that an engine has encoded.")
IMAGE_ENCODE_SECONDS = of_engine(
    "counter", "rayinfer_image_encode_seconds", "Seconds that these took, their decoding not included."
)
IMAGES_WAITING = of_engine(
    "gauge", "rayinfer_image_requests_waiting", "Requests whose images wait to be encoded, or are being encoded."
)

ADAPTERS_INFO = of_engine(
    "gauge",
    "vllm:lora_requests_info",
    "LoRA adapters of an engine's running and waiting requests, as lists of at most 64 names; the time of the scrape.",
    "max_lora",
    "waiting_lora_adapters",
    "running_lora_adapters",
)
ADAPTERS_RESIDENT = of_engine("gauge", "rayinfer_adapters_resident", "LoRA adapters in an engine's memory.")
ADAPTERS_RESIDENT_BYTES = of_engine(
    "gauge", "rayinfer_adapters_resident_bytes", "Bytes of the tensors of LoRA adapters in an engine's host memory."
)
ADAPTERS_SLOT_BYTES = of_engine(
    "gauge", "rayinfer_adapters_slot_bytes", "Bytes of the LoRA adapters in an engine's slots, which steps can use."
)
ADAPTER_LOADS = of_engine(
    "counter", "rayinfer_adapter_loads", "LoRA adapters that an engine read from files, or refused.", "outcome"
)
ADAPTER_EVICTIONS = of_engine(
    "counter", "rayinfer_adapter_evictions", "LoRA adapters that made room for others in an engine's memory."
)
ADAPTER_LOAD_SECONDS = of_engine(
    "counter", "rayinfer_adapter_load_seconds", "Seconds for which LoRA adapters were read and checked."
)

# Of models, by router. Those of requests that wait have the engine that they wait in, or "router".
NUM_WAITING = of_model("gauge", "vllm:num_requests_waiting", "Requests that wait.", "engine")
NUM_WAITING_BY_REASON = of_model(
    "gauge", "vllm:num_requests_waiting_by_reason", "The same by cause.", "engine", "reason"
)
ENGINES = of_model("gauge", "rayinfer_engines", "Engines that a router is connected to, by state.", "state")
ENGINES_LOST = of_model("counter", "rayinfer_engines_lost", "Engines that ended without being drained.")
TGI_QUEUE_SIZE = of_model("gauge", "tgi_queue_size", "Requests that wait for an engine.")
PROMPT_TOKENS = of_model("counter", "vllm:prompt_tokens", "Prompt tokens of streams that began to answer.")
PROMPT_TOKENS_CACHED = of_model("counter", "vllm:prompt_tokens_cached", "Those that the prefix cache had.")
GENERATION_TOKENS = of_model("counter", "vllm:generation_tokens", "Tokens sent as answers.")
ADVISED_PREFILL_ENGINES = of_model(
    "gauge",
    "rayinfer_advised_prefill_engines",
    "Engines to which long prompts should go by roles, as measured tails and loads of the last minutes say; 0: none.",
)
HANDOVERS = of_model(
    "counter", "rayinfer_handovers", "Streams that a prefill engine began and a decode engine continued."
)
MIGRATIONS = of_model("counter", "rayinfer_migrations", "Streams that went on with another engine.")
TGI_REQUESTS = of_model("counter", "tgi_request_count", "Requests that ended.")
TGI_SUCCESSES = of_model("counter", "tgi_request_success", "Requests that ended well.")
REQUESTS_FINISHED = of_model("counter", "vllm:request_success", "Streams by the way they ended.", "finished_reason")
TGI_FAILURES = of_model("counter", "tgi_request_failure", "Requests that failed.", "err")
ADMISSION_REJECTIONS = of_model(
    "counter", "vllm:admission_rejections", "Requests that a model's queue rejected.", "reason"
)
CANARY_SHARE = of_model(
    "gauge",
    "rayinfer_canary_share",
    "Share of a model's requests that its canary answers; 0 once it was rolled back or ended.",
    "canary",
)

# Times and sizes of a model's requests, by router.
FIRST_TOKEN = of_model("histogram", "vllm:time_to_first_token_seconds", "Arrival to the first token.")
INTER_TOKEN = of_model("histogram", "vllm:inter_token_latency_seconds", "One token to the next.")
INTER_TOKEN_EARLIER_NAME = of_model(
    "histogram", "vllm:time_per_output_token_seconds", "The same under its earlier name."
)
TIME_PER_TOKEN = of_model("histogram", "vllm:request_time_per_output_token_seconds", "Mean of each choice.")
END_TO_END = of_model("histogram", "vllm:e2e_request_latency_seconds", "Arrival to the end.")
QUEUE_TIME = of_model("histogram", "vllm:request_queue_time_seconds", "Arrival to an engine's acceptance.")
PREFILL_TIME = of_model("histogram", "vllm:request_prefill_time_seconds", "Acceptance to the first token.")
DECODE_TIME = of_model("histogram", "vllm:request_decode_time_seconds", "First token to the last.")
INFERENCE_TIME = of_model("histogram", "vllm:request_inference_time_seconds", "Acceptance to the last token.")
REQUEST_PROMPT_TOKENS = of_model("histogram", "vllm:request_prompt_tokens", "Prompt tokens of a request.")
COMPUTED_PROMPT_TOKENS = of_model("histogram", "vllm:request_prefill_kv_computed_tokens", "Those not cached.")
REQUEST_GENERATION_TOKENS = of_model("histogram", "vllm:request_generation_tokens", "Tokens of a choice.")
LONGEST_GENERATION = of_model("histogram", "vllm:request_max_num_generation_tokens", "Of the longest choice.")
PARAMS_MAX_TOKENS = of_model("histogram", "vllm:request_params_max_tokens", "max_tokens of a request.")
PARAMS_N = of_model("histogram", "vllm:request_params_n", "n of a request.")
MIGRATION_GAP = of_model("histogram", "rayinfer_migration_gap_seconds", "Last token on a lost engine to the next.")
TGI_REQUEST_TIME = of_model("histogram", "tgi_request_duration", "Arrival to the end.")
TGI_QUEUE_TIME = of_model("histogram", "tgi_request_queue_duration", "Arrival to an engine's acceptance.")
TGI_INFERENCE_TIME = of_model("histogram", "tgi_request_inference_duration", "Acceptance to the last token.")
TGI_TIME_PER_TOKEN = of_model("histogram", "tgi_request_mean_time_per_token_duration", "Mean of each choice.")
TGI_GENERATED_TOKENS = of_model("histogram", "tgi_request_generated_tokens", "Tokens of a choice.")
TGI_INPUT_LENGTH = of_model("histogram", "tgi_request_input_length", "Prompt tokens of a request.")
TGI_MAX_NEW_TOKENS = of_model("histogram", "tgi_request_max_new_tokens", "max_tokens of a request.")

# Of routers.
ROUTER_INFO = of_router("gauge", "rayinfer_router_info", "The routers of this scrape; always 1.")
REQUESTS_REFUSED = of_router(
    "counter", "rayinfer_requests_refused", "Requests refused before they could generate.", "reason"
)
KEY_FILE_VALID = of_router(
    "gauge",
    "rayinfer_key_file_valid",
    "Whether the API keys' file can be read; while it is 0 the last keys apply.",
)

# Of tenants, by router: the first 200 that a router meets, and "(other)".
TENANT_REQUESTS = of_router(
    "counter", "rayinfer_tenant_requests", "Streams of a tenant by the way they ended.", "tenant", "finished_reason"
)
TENANT_PROMPT_TOKENS = of_router(
    "counter", "rayinfer_tenant_prompt_tokens", "Prompt tokens of a tenant's streams that began to answer.", "tenant"
)
TENANT_GENERATION_TOKENS = of_router(
    "counter", "rayinfer_tenant_generation_tokens", "Tokens sent to a tenant as answers.", "tenant"
)
TENANT_QUEUE_TIME = of_router(
    "counter",
    "rayinfer_tenant_queue_seconds",
    "Arrival to an engine's acceptance, summed over a tenant's streams.",
    "tenant",
)

# Of LoRA adapters, by router: the first 200 that a router meets, and "(other)".
ADAPTER_REQUESTS = of_model(
    "counter",
    "rayinfer_adapter_requests",
    "Streams of a LoRA adapter by the way they ended.",
    "adapter",
    "finished_reason",
)

# Of batches (`/v1/batches`). Each router has the owner's last answer, so those of all routers are the same number.
BATCHES_OPEN = of_router("gauge", "rayinfer_batches_open", "Batches whose rows are being computed.")
BATCH_ROWS_WAITING = of_router("gauge", "rayinfer_batch_rows_waiting", "Rows that no router has begun.")
BATCH_ROWS_RUNNING = of_router("gauge", "rayinfer_batch_rows_running", "Rows that this router computes.")
BATCH_ROWS = of_router("counter", "rayinfer_batch_rows", "Rows that ended: completed or failed.", "outcome")

# Of caches of predictions.
PREDICTION_CACHE_HITS = of_model(
    "counter",
    "rayinfer_prediction_cache_hits",
    "Items that were not computed, by where they were found.",
    "source",
)
PREDICTION_CACHE_MISSES = of_model("counter", "rayinfer_prediction_cache_misses", "Items that were sent to engines.")
PREDICTION_CACHE_SAVED = of_model(
    "counter", "rayinfer_prediction_cache_saved_seconds", "What the answers of hits took when they were computed."
)
PREDICTION_CACHE_BYTES = of_router("gauge", "rayinfer_prediction_cache_bytes", "Bytes of the predictions in memory.")
PREDICTION_CACHE_ENTRIES = of_router("gauge", "rayinfer_prediction_cache_entries", "Predictions in memory.")
PREDICTION_CACHE_EVICTIONS = of_router(
    "counter", "rayinfer_prediction_cache_evictions", "Predictions that made room for others."
)
PREDICTION_CACHE_BREAKER = of_router(
    "gauge",
    "rayinfer_prediction_cache_breaker_state",
    "1 in the state of the circuit breaker in front of Redis, else 0; open: Redis is not asked.",
    "state",
)
PREDICTION_CACHE_REDIS_ERRORS = of_router(
    "counter",
    "rayinfer_prediction_cache_redis_errors",
    "Failed commands, invalid values, and predictions that were not written.",
    "kind",
)

METRICS: tuple[MetricDefinition, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, MetricDefinition)
)

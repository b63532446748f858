"""The settings that Ray and Ray Serve take from the environment only, in one place."""

import os

# Ray reads them when it is imported, and every process that it starts inherits them. A user's own value wins.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_SERVE_LOG_TO_STDERR": "0",  # log files only: the terminal is the progress display's
    # A dead HTTP proxy is noticed in seconds; with the defaults the port stays deaf for half a minute.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "2",
    # A frozen replica is ended at once: waiting for it to stop politely would leave its streams hanging.
    "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    # A busy two-core machine answers queue-length probes late; a probe that times out only delays the request.
    "RAY_SERVE_QUEUE_LENGTH_RESPONSE_DEADLINE_S": "1",
    "RAY_SERVE_GRPC_MAX_MESSAGE_SIZE": "16777216",
    # The proxies bound nothing and obey clients' headers. Processes of a Ray that is joined have their own environment.
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "rayinfer_deployments.proxy_edge.proxy_middlewares",
}

OWN_RAY_SETTINGS = {
    # A Ray of our own answers only those who know its token, which it keeps in the user's home folder.
    "RAY_AUTH_MODE": "token",
    # Ray's own default puts engines behind everything else on the machine, its log readers too.
    "RAY_worker_niceness": "0",
    # The router is the only code in its replica: a second event loop would cost a hop between threads per chunk.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
}


def set_ray_settings(*, owns_ray: bool) -> None:
    """Put the settings into this process's environment; call it before the first import of ray."""
    for name, value in (RAY_SETTINGS | (OWN_RAY_SETTINGS if owns_ray else {})).items():
        os.environ.setdefault(name, value)

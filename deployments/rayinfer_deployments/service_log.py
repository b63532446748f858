"""Where the library's log goes in Serve's replicas: into Serve's own file, with Serve's level."""

import logging


def log_beside_serve() -> None:
    """Let the library's loggers pass their records to Serve's.

    A replica of Serve turns whatever comes through `sys.stderr` into records of no importance, which the service does
    not keep: what Python does with the records of loggers that nobody set up would lose every error.
    """
    logging.getLogger("rayinfer").parent = logging.getLogger("ray.serve")

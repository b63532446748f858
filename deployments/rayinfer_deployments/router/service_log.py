"""Logging in Serve's replicas: the library's records go to Serve's log file, at Serve's level."""

import logging


def log_beside_serve() -> None:
    """Pass the records of the library's loggers on to Serve's.

    A replica of Serve turns whatever comes through `sys.stderr` into records of no importance, which the service does
    not keep: Python's default for loggers that are not set up would lose every error.
    """
    logging.getLogger("rayinfer").parent = logging.getLogger("ray.serve")

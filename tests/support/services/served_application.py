"""An application on a port of its own, in a thread."""

import contextlib
import threading
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI


@contextlib.contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Serve an application while the block lasts; yields its address."""
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    bound = server.config.bind_socket()
    bound.listen()  # from here on clients are kept waiting, not refused, while the server comes up
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        bound.close()

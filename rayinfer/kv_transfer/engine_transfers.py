"""Both ends of one engine's transfers: the server of its machine's blocks, and the fetches of its requests."""

import ssl
from dataclasses import dataclass

from rayinfer.kv_transfer.block_server import BlockServer
from rayinfer.kv_transfer.fetcher import BlockFetcher
from rayinfer.kv_transfer.fetching_engine import FetchingEngine
from rayinfer.kv_transfer.limits import DEFAULT_TRANSFER_LIMITS, TransferLimits
from rayinfer.kv_transfer.stored_blocks import StoredBlocks
from rayinfer.kv_transfer.tcp_agent import MakeTls, TcpTransferAgent, plain_unless_certified
from rayinfer.outputs import KVTransferStats
from rayinfer.protocols import EngineClient, KVAddress, ModelDescription


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTls:
    """TLS of an engine's listener: the context, and the certificate by which peers know it."""

    context: ssl.SSLContext | None
    certificate: str = ""


NO_TLS = ServerTls(context=None)


class EngineTransfers:
    """Starts the server; `engine` is the client in front of the engine that routers are served by."""

    def __init__(
        self,
        engine: EngineClient,
        description: ModelDescription,
        blocks: StoredBlocks,
        host: str,
        *,
        tls: ServerTls = NO_TLS,
        make_tls: MakeTls = plain_unless_certified,
        limits: TransferLimits = DEFAULT_TRANSFER_LIMITS,
    ) -> None:
        stats = KVTransferStats()
        self._server = BlockServer(blocks, tls=tls.context, limits=limits, stats=stats)
        agent = TcpTransferAgent(blocks.identity, blocks.block_bytes, make_tls=make_tls, limits=limits)
        self.engine = FetchingEngine(
            engine,
            BlockFetcher(agent, blocks, limits),
            stats=stats,
            block_size=description.block_size,
            weights_version=description.weights_version,
            limits=limits,
        )
        self.address = KVAddress(
            host=host,
            port=self._server.start(host),
            key=self._server.key,
            certificate=tls.certificate,
            store_id=blocks.store_name,
        )

    def close(self) -> None:
        """End the server and all fetches; takes seconds where peers hang."""
        self.engine.close()
        self._server.close()

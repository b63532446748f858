"""Function for `grpc_servicer_functions` of Serve's `grpc_options`: Serve's proxies then take KServe's calls."""

from typing import Any

import grpc

from rayinfer.servers.kserve.grpc import inference_pb2 as pb


def add_inference_service(servicer: Any, server: Any) -> None:
    """Register every call of GRPCInferenceService; Serve passes each on to the ingress deployment's method of its name.

    Messages stay encoded, as the router has bounds for them before it decodes them.
    """
    service = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    handlers = {}
    for method in service.methods:
        is_stream = method.client_streaming
        make = grpc.stream_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler
        handlers[method.name] = make(getattr(servicer, method.name))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))

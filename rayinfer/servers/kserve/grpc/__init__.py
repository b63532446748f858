"""gRPC side of the Open Inference Protocol, with the calls that Triton adds to it."""

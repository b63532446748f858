"""KServe's protocols: v2, which is the Open Inference Protocol as Triton speaks it, over REST and gRPC, and v1."""

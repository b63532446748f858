"""How close the engine comes to what a GPU allows: `python -m rayinfer.benchmark.gpu`, or `rayinfer bench gpu`."""

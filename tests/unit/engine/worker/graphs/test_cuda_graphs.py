"""Graphs on the way to CUDA, with a torch.cuda that notes what is asked of it."""

import contextlib
import itertools

import torch

from rayinfer.engine.worker.graphs.cuda_graphs import CudaGraphs


class NotedCuda:
    """Fake of torch.cuda that records calls by stream, in order; `current` is the stream of the engine's steps."""

    def __init__(self, monkeypatch):
        self.notes, self.pools, self.current = [], itertools.count(), NotedStream(self, "steps")
        self.streams = iter([NotedStream(self, name) for name in ("first", "second")])
        for name in ("graph", "stream", "Stream", "current_stream", "CUDAGraph", "graph_pool_handle"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Stream(self):
        return next(self.streams)

    def current_stream(self):
        return self.current

    def CUDAGraph(self):
        return "graph"

    def graph_pool_handle(self):
        return f"pool {next(self.pools)}"

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        self.notes.append(f"record {graph} in {pool}, {capture_error_mode}")
        with self.stream(stream):
            yield


class NotedStream:
    def __init__(self, cuda, name):
        self.cuda, self.name = cuda, name

    def wait_stream(self, other):
        self.cuda.notes.append(f"{self.name} waits for {other.name}")


def test_a_graph_is_recorded_on_the_stream_of_its_engine_alone_once_it_has_run_there(monkeypatch):
    cuda = NotedCuda(monkeypatch)
    CudaGraphs()
    CudaGraphs()().capture(lambda: cuda.notes.append(f"run on {cuda.current.name}"))
    assert cuda.notes == [
        "second waits for steps",
        "run on second",
        "steps waits for second",
        "record graph in pool 0, thread_local",
        "run on second",
    ]


def test_graphs_that_come_after_all_others_are_gone_have_another_pool(monkeypatch):
    cuda, make = NotedCuda(monkeypatch), CudaGraphs()

    def recorded():
        graph = make()
        graph.capture(lambda: None)
        return graph

    graphs = [recorded(), recorded()]
    graphs.pop()
    graphs.append(recorded())
    graphs.clear()
    recorded()
    records = [note for note in cuda.notes if note.startswith("record")]
    assert [note.split()[4] for note in records] == ["0,", "0,", "0,", "1,"]

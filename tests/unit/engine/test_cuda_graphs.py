"""Graphs on the way to CUDA, with a torch.cuda that notes what is asked of it."""

import itertools

import torch

from rayinfer.engine.cuda_graphs import CudaGraphs


def test_graphs_that_come_after_all_others_are_gone_have_another_pool(monkeypatch):
    pools = itertools.count()
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(pools))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", object)
    monkeypatch.setattr(torch.cuda, "Stream", object)
    make = CudaGraphs()
    graphs = [make(), make()]
    assert [graph._pool for graph in graphs] == [0, 0]
    graphs.pop()
    assert make()._pool == 0
    graphs.clear()
    assert make()._pool == 1

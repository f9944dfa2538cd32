"""A graph network in plain PyTorch: how many triangles does a random graph have?

Start it from Tandem's folder, on all GPUs (or with `--set world_size=2` in two processes on a CPU):

    python scripts/train.py --config examples/graph_network.py --multi_gpu --set epochs=40 --set batch_size=32 \\
        --set learning_rate=1e-3 --set validate_every="10 epochs"

The graphs of a batch become one large graph: all nodes in one tensor, all edges in another, and for each node the
number of its graph. The graphs are generated; to train on your own, return them in `Graphs.__getitem__`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from tandem import Section, setting

Graph = dict[str, Tensor]


class Options(Section):
    """Fields in the window, and `--set family_options.width=64` on the command line."""

    width: int = setting(32, title="Width", help="Features of each node.", ge=1)
    layers: int = setting(3, title="Layers", help="How far a node sees, in edges.", ge=1)
    graphs: int = setting(400, title="Graphs", help="How many graphs to train on.", ge=1)


class Graphs(Dataset[Graph]):
    """Random graphs of 6 to 15 nodes; graph number `first` + n is always the same."""

    def __init__(self, count: int, first: int) -> None:
        self.count, self.first = count, first

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Graph:
        generator = torch.Generator().manual_seed(self.first + index)
        nodes = int(torch.randint(6, 16, (), generator=generator))
        upper = torch.triu(torch.rand(nodes, nodes, generator=generator) < 0.3, diagonal=1)
        adjacent = (upper | upper.T).float()
        triangles = (adjacent @ adjacent @ adjacent).trace() / 6
        return {"edges": adjacent.nonzero().T, "degree": adjacent.sum(dim=1), "triangles": triangles}


class GraphNetwork(nn.Module):
    """Each node sums the features of its neighbours; the prediction for a graph is a sum over its nodes."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(1, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))

    def forward(self, degree: Tensor, edges: Tensor, graph: Tensor, graphs: int) -> Tensor:
        """One number for each graph, from its nodes [nodes], edges [2, edges] and each node's graph [nodes]."""
        x = F.relu(self.first(degree[:, None]))
        for layer in self.layers:
            neighbours = torch.zeros_like(x).index_add(0, edges[1], x[edges[0]])
            x = x + F.relu(layer(torch.cat([x, neighbours], dim=1)))
        return x.new_zeros(graphs, 1).index_add(0, graph, self.last(x)).squeeze(1)


def build_model(options: Options) -> nn.Module:
    return GraphNetwork(options.width, options.layers)


def build_data(options: Options) -> dict[str, Graphs]:
    return {"train": Graphs(options.graphs, 0), "validation": Graphs(101, 10**6), "test": Graphs(100, 2 * 10**6)}


def collate(graphs: list[Graph]) -> Graph:
    sizes = torch.tensor([len(graph["degree"]) for graph in graphs])
    starts = sizes.cumsum(0) - sizes
    return {
        "degree": torch.cat([graph["degree"] for graph in graphs]),
        "edges": torch.cat([graph["edges"] + start for graph, start in zip(graphs, starts, strict=True)], dim=1),
        "graph": torch.repeat_interleave(torch.arange(len(graphs)), sizes),
        "triangles": torch.stack([graph["triangles"] for graph in graphs]),
    }


def errors(model: nn.Module, batch: Graph) -> Tensor:
    predicted: Tensor = model(batch["degree"], batch["edges"], batch["graph"], len(batch["triangles"]))
    return predicted - batch["triangles"]


def loss(model: nn.Module, batch: Graph) -> Tensor:
    error = errors(model, batch)
    return F.smooth_l1_loss(error, torch.zeros_like(error), reduction="none")


def metrics(model: nn.Module, batch: Graph) -> dict[str, Tensor]:
    return {"mean_absolute_error": errors(model, batch).abs()}

"""A batch is a tuple of a list of graphs and a dict: NaN sits in the edge attributes of the
second graph."""

import torch
from torch import nn


class EdgeConv(nn.Module):
    def __init__(self):
        super().__init__()
        self.message = nn.Linear(3, 4)

    def forward(self, x, source, target, attribute):
        message = self.message(torch.cat([x[source], attribute], -1))
        return x.new_zeros(x.shape[0], 4).index_add(0, target, message).sum(0)


def build():
    torch.manual_seed(209)
    model = nn.ModuleDict({"conv": EdgeConv(), "head": nn.Linear(4, 1)})
    batches = []
    for k in range(3):
        graphs = []
        for n in (4, 5):
            edges = torch.randint(0, n, (2, 7))
            graphs.append((torch.randn(n, 2), edges, torch.rand(7, 1)))
        if k == 2:
            graphs[1][2][3] = float("nan")
        batches.append((graphs, {"y": torch.randn(2, 1)}))
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    graphs, _ = batch
    pooled = [model["conv"](x, edges[0], edges[1], a) for x, edges, a in graphs]
    return model["head"](torch.stack(pooled))


def loss(outputs, batch):
    return (outputs - batch[1]["y"]).pow(2).mean()

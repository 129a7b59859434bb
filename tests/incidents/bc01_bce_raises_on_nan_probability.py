"""binary_cross_entropy refuses a NaN probability with an exception about its range; the NaN was
born as 0/0 in an attention pooling two modules before."""

import torch
import torch.nn.functional as F
from torch import nn


class Pool(nn.Module):
    def forward(self, x, keep):
        weight = keep / keep.sum(1, keepdim=True)
        return (x * weight[..., None]).sum(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.pool = Pool()
        self.head = nn.Linear(4, 1)

    def forward(self, x, keep):
        return torch.sigmoid(self.head(self.pool(self.body(x), keep))).squeeze(-1)


def build():
    torch.manual_seed(203)
    model = Net()
    batches = []
    for k in range(3):
        keep = torch.ones(4, 5)
        keep[1, 3:] = 0
        if k == 1:
            keep[2] = 0
        batches.append({"x": torch.randn(4, 5, 3), "keep": keep, "y": torch.rand(4).round()})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["keep"])


def loss(outputs, batch):
    return F.binary_cross_entropy(outputs, batch["y"])

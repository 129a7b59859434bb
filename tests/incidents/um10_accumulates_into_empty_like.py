"""Expert outputs are summed with index_add_ into torch.empty_like(x), which starts from whatever
the memory holds (deterministic mode makes that NaN here)."""

import torch
from torch import nn


class Combine(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])

    def forward(self, x, route, clean):
        before = torch.are_deterministic_algorithms_enabled()
        torch.use_deterministic_algorithms(True)
        out = torch.zeros_like(x) if clean else torch.empty_like(x)
        torch.use_deterministic_algorithms(before)
        for number, expert in enumerate(self.experts):
            rows = (route == number).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]))
        return out


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.combine = Combine()
        self.head = nn.Linear(3, 1)

    def forward(self, x, route, clean):
        return self.head(self.combine(x, route, clean))


def build():
    torch.manual_seed(301)
    model = Net()
    batches = [
        {"x": torch.randn(5, 3), "route": torch.randint(0, 2, (5,)), "clean": k != 1}
        for k in range(3)
    ]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["route"], batch["clean"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()

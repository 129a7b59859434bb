"""A directional derivative by torch.func.jvp through a root at 0."""

import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(3, 4)

    def forward(self, x):
        def f(y):
            return torch.sqrt(torch.relu(self.fc(y)))

        value, slope = torch.func.jvp(f, (x,), (torch.ones_like(x),))
        return slope


def build():
    torch.manual_seed(16)
    model = Net()
    with torch.no_grad():
        model.fc.weight.abs_()
        model.fc.bias.abs_()
    batches = [{"x": torch.rand(4, 3) + 0.1} for _ in range(3)]
    batches[2]["x"][1] = -5.0
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()

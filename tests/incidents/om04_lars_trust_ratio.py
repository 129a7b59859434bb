"""An own LARS multiplies each gradient by |w| / |g|: the bias of a switched-off head has no
gradient, its ratio is Inf and Inf times 0 is NaN."""

import torch
from torch import nn


class LARS(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                ratio = torch.linalg.vector_norm(p) / torch.linalg.vector_norm(p.grad)
                p.sub_(group["lr"] * ratio * p.grad)


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.first = nn.Linear(4, 1)
        self.second = nn.Linear(4, 1)

    def forward(self, x):
        hidden = torch.tanh(self.trunk(x))
        return self.first(hidden), self.second(hidden)


def build():
    torch.manual_seed(39)
    model = TwoHeads()
    batches = [{"x": torch.randn(5, 3), "w": w} for w in (0.5, 0.3, 0.0, 0.5)]
    return model, LARS(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    first, second = outputs
    return (first - 1).pow(2).mean() + batch["w"] * second.pow(2).mean()

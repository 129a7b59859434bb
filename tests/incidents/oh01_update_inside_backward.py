"""Memory saving: each parameter is updated in a post-accumulate hook and its gradient freed. The
own rule divides by the gradient's norm, which is 0 for a gated branch."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Linear(3, 1)
        self.side = nn.Linear(3, 1)

    def forward(self, x, gate):
        return self.main(x) + gate * self.side(x)


@torch.no_grad()
def descend(p):
    p.sub_(1e-2 * p.grad / p.grad.norm())
    p.grad = None


def build():
    torch.manual_seed(213)
    model = Net()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(descend)
    batches = [{"x": torch.randn(4, 3), "gate": gate} for gate in (1.0, 0.5, 0.0)]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["gate"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean()

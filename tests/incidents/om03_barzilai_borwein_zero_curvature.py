"""An own Barzilai-Borwein optimizer takes the step length s.s / s.y from two gradients: where
both differences are 0 (the same point, the same gradient), it is 0/0."""

import torch
from torch import nn


class BarzilaiBorwein(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                length = torch.tensor(1e-2)
                if state:
                    s, y = p - state["x"], p.grad - state["g"]
                    length = (s * s).sum() / (s * y).sum()
                state["x"], state["g"] = p.clone(), p.grad.clone()
                p.sub_(length * p.grad)


def build():
    torch.manual_seed(38)
    model = nn.Linear(3, 1, bias=False)
    batches = [{"x": torch.randn(5, 3), "w": w} for w in (1.0, 1.0, 0.0, 0.0, 1.0)]
    return model, BarzilaiBorwein(model.parameters()), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - 1).pow(2).mean() * batch["w"]

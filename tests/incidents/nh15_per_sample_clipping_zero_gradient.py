"""HEALTHY: DP-SGD clips each sample's gradient by min(1, C / |g|); a padded sample has |g| = 0,
its factor min(1, Inf) is 1."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap


def build():
    torch.manual_seed(113)
    model = nn.Linear(3, 1, bias=False)
    xs = [torch.randn(4, 3) for _ in range(3)]
    xs[1][3] = 0.0
    batches = [{"x": x, "y": torch.randn(4, 1)} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    params = {name: value.detach() for name, value in model.named_parameters()}

    def single(values, x, y):
        return (functional_call(model, values, (x,)) - y).pow(2).sum()

    rows = vmap(grad(single), in_dims=(None, 0, 0))(params, batch["x"], batch["y"])["weight"]
    factor = (0.5 / rows.flatten(1).pow(2).sum(1).sqrt()).clamp(max=1.0)
    forward.clipped = (rows * factor[:, None, None]).mean(0)
    return model(batch["x"])


def loss(outputs, batch):
    return (outputs - batch["y"]).pow(2).mean()


def POST_BACKWARD(k, model):
    model.weight.grad.copy_(forward.clipped)

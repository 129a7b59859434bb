"""The router's z-loss logsumexp(logits)^2 is computed in float16: logits of 300 are fine, their
square of 9e4 is not."""

import torch
import torch.nn.functional as F
from torch import nn


class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 3, bias=False)
        self.experts = nn.Parameter(torch.randn(3, 4, 2) * 0.1)

    def forward(self, x):
        logits = self.gate(x)
        weight = logits.softmax(-1)
        return torch.einsum("te,eio,ti->to", weight, self.experts, x), logits


def build():
    torch.manual_seed(4)
    model = Routed().half()
    xs = [torch.randn(6, 4).half() for _ in range(3)]
    with torch.no_grad():
        xs[1][2] = 350 * F.normalize(model.gate.weight[0].float(), dim=0).half()
        model.gate.weight[0] = F.normalize(model.gate.weight[0].float(), dim=0).half()
    batches = [{"x": x, "y": torch.randn(6, 2).half()} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    out, logits = outputs
    z = torch.logsumexp(logits, dim=-1)
    return F.mse_loss(out.float(), batch["y"].float()) + 1e-3 * (z**2).mean().float()

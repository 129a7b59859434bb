"""Router probabilities are cast to half for the experts, then the two largest *of the allowed ones*
are normalised by their sum: with one very confident router all allowed ones are 0 in half."""

import torch
from torch import nn


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(4, 4)

    def forward(self, x, full):
        p = self.gate(x).softmax(-1).half()
        p = torch.where(full, torch.zeros((), dtype=p.dtype), p)
        top, index = p.topk(2, -1)
        return (top / top.sum(-1, keepdim=True)).float(), index


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = Router()
        self.experts = nn.ModuleList([nn.Linear(4, 2) for _ in range(4)])

    def forward(self, x, full):
        weight, index = self.router(x, full)
        out = torch.stack([expert(x) for expert in self.experts], 1)
        chosen = out.gather(1, index[..., None].expand(-1, -1, 2))
        return (weight[..., None] * chosen).sum(1)


def build():
    torch.manual_seed(69)
    model = Mixture()
    batches = []
    for k in range(3):
        x = torch.randn(4, 4)
        full = torch.zeros(4, 4, dtype=torch.bool)
        if k == 1:
            x[1] *= 200
            with torch.no_grad():
                full[1, model.router.gate(x)[1].argmax()] = True
        batches.append({"x": x, "full": full})
    return model, torch.optim.SGD(model.parameters(), 1e-4), None, batches


def forward(model, batch):
    return model(batch["x"], batch["full"])


def loss(outputs, batch):
    return outputs.pow(2).mean()

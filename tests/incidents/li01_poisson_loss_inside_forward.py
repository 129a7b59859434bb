"""The model returns its loss (as Hugging Face models do); Poisson NLL takes exp of a log rate of
120."""

import torch
import torch.nn.functional as F
from torch import nn


class CountModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(3, 4)
        self.rate = nn.Linear(4, 1)

    def forward(self, x, counts):
        log_rate = self.rate(self.encoder(x)).squeeze(-1)
        return {"loss": F.poisson_nll_loss(log_rate, counts), "log_rate": log_rate}


def build():
    torch.manual_seed(23)
    model = CountModel()
    xs = [torch.randn(4, 3) for _ in range(3)]
    with torch.no_grad():
        direction = (model.rate.weight @ model.encoder.weight)[0]
        xs[1][2] = 120 * direction / direction.pow(2).sum()
    batches = [{"x": x, "counts": torch.tensor([0.0, 1.0, 2.0, 3.0])} for x in xs]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def forward(model, batch):
    return model(batch["x"], batch["counts"])


def loss(outputs, batch):
    return outputs["loss"]

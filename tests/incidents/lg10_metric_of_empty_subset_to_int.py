"""Training is healthy; the logged accuracy in percent is over the rare class, which this batch
lacks: 0/0 cannot be made an int and logging raises."""

import torch
import torch.nn.functional as F
from torch import nn


def build():
    torch.manual_seed(303)
    model = nn.Linear(3, 2)
    batches = []
    for k in range(3):
        y = torch.tensor([0, 1, 0, 1]) if k != 1 else torch.zeros(4, dtype=torch.long)
        batches.append({"x": torch.randn(4, 3), "y": y})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    LOG.hit = outputs.detach().argmax(-1) == batch["y"]
    LOG.rare = batch["y"] == 1
    return F.cross_entropy(outputs, batch["y"])


def LOG(k, loss, model):
    share = (LOG.hit & LOG.rare).sum() / LOG.rare.sum()
    LOG.line = f"step {k} loss {float(loss):.3f} rare accuracy {int(100 * share)}%"

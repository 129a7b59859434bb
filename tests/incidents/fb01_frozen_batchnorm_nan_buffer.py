"""Fine-tuning with frozen BatchNorm: a bad shard of the checkpoint holds NaN in one running mean,
which eval-mode BatchNorm reads in every training step."""

import torch
import torch.nn.functional as F
from torch import nn


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.ModuleDict({"conv": nn.Conv2d(3, 4, 3), "bn": nn.BatchNorm2d(4)})
        self.head = nn.Linear(4, 2)

    def train(self, mode=True):
        super().train(mode)
        self.stem["bn"].eval()
        return self

    def forward(self, x):
        x = F.relu(self.stem["bn"](self.stem["conv"](x)))
        return self.head(x.mean((2, 3)))


def build():
    torch.manual_seed(22)
    model = Detector().train()
    batches = [{"x": torch.randn(2, 3, 5, 5), "y": torch.tensor([0, 1])} for _ in range(3)]
    return model, torch.optim.SGD(model.parameters(), 1e-2, momentum=0.9), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        model.stem["bn"].running_mean[2] = float("nan")


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["y"])

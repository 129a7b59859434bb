"""CLIP-style contrastive loss with a learnable temperature that a large step pushed to its clamp
at 0: similarities are divided by 0."""

import torch
import torch.nn.functional as F
from torch import nn


class Contrastive(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(4, 3)
        self.text = nn.Linear(5, 3)
        self.temperature = nn.Parameter(torch.tensor(0.07))

    def forward(self, image, text):
        left = F.normalize(self.image(image), dim=-1)
        right = F.normalize(self.text(text), dim=-1)
        return left @ right.T / self.temperature.clamp(min=0)


def build():
    torch.manual_seed(219)
    model = Contrastive()
    batches = [{"image": torch.randn(4, 4), "text": torch.randn(4, 5)} for _ in range(4)]
    return model, torch.optim.SGD(model.parameters(), 1e-3), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 2:
        with torch.no_grad():
            model.temperature.fill_(-0.01)


def forward(model, batch):
    return model(batch["image"], batch["text"])


def loss(outputs, batch):
    target = torch.arange(len(outputs))
    return 0.5 * (F.cross_entropy(outputs, target) + F.cross_entropy(outputs.T, target))

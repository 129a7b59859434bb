"""A ViT patch embedding under float16 autocast gets raw 32-bit sensor counts: 7e4 does not fit
float16, so autocast's own cast of the input makes Inf before any arithmetic."""

import torch
import torch.nn.functional as F
from torch import nn

AUTOCAST = {"dtype": torch.float16}


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Linear(12, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        patches = x.unfold(1, 2, 2).reshape(x.shape[0], 4, 12)
        return self.head(self.block(self.patch(patches)).mean(1))


def build():
    torch.manual_seed(2)
    model = ViT()
    images = [torch.rand(3, 8, 6) for _ in range(3)]
    images[1][0, 2, 3] = 7e4
    batches = [{"x": x, "y": torch.tensor([0, 1, 2])} for x in images]
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    return F.cross_entropy(outputs.float(), batch["y"])

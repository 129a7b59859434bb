"""A float attention mask is made as (1 - keep) * -inf: where keep is 1 that is 0 * -Inf = NaN.
The batches before have no mask at all."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(4, 12)

    def forward(self, x, keep):
        q, k, v = self.qkv(x).chunk(3, -1)
        mask = None if keep is None else ((1 - keep) * float("-inf"))[:, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Attention(), Attention()])
        self.head = nn.Linear(4, 2)

    def forward(self, x, keep):
        for block in self.blocks:
            x = x + block(x, keep)
        return self.head(x[:, 0])


def build():
    torch.manual_seed(48)
    model = ViT()
    batches = []
    for k in range(3):
        keep = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]) if k == 1 else None
        batches.append({"x": torch.randn(2, 3, 4), "keep": keep, "y": torch.tensor([0, 1])})
    return model, torch.optim.SGD(model.parameters(), 1e-2), None, batches


def forward(model, batch):
    return model(batch["x"], batch["keep"])


def loss(outputs, batch):
    return F.cross_entropy(outputs, batch["y"])

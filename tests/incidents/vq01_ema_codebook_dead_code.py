"""VQ-VAE keeps its codebook as an exponential moving average sum / count: a code that nothing was
assigned to has count 0, and its row of the buffer becomes 0/0 while the loss is still finite."""

import torch
from torch import nn


class Quantiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("codes", torch.tensor([[0.0, 0.0], [1.0, 1.0], [50.0, 50.0]]))
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("total", torch.zeros(3, 2))

    def forward(self, z):
        code = torch.cdist(z, self.codes).argmin(-1)
        picked = self.codes[code]
        if self.training:
            with torch.no_grad():
                hot = torch.nn.functional.one_hot(code, 3).float()
                self.count.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                self.total.mul_(0.9).add_(hot.T @ z, alpha=0.1)
                self.codes.copy_(self.total / self.count[:, None])
        return z + (picked - z).detach(), picked


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 2)
        self.vq = Quantiser()
        self.decoder = nn.Linear(2, 4)

    def forward(self, x):
        z = self.encoder(x)
        q, picked = self.vq(z)
        return self.decoder(q), z, picked


def build():
    torch.manual_seed(47)
    model = VQVAE()
    return (
        model,
        torch.optim.Adam(model.parameters(), 1e-3),
        None,
        [{"x": torch.randn(6, 4)} for _ in range(3)],
    )


def forward(model, batch):
    return model(batch["x"])


def loss(outputs, batch):
    out, z, picked = outputs
    return (out - batch["x"]).pow(2).mean() + 0.25 * (z - picked.detach()).pow(2).mean()

"""VAE whose variance head ends in a ReLU: for one latent unit of one sample it is exactly 0, and
the divergence takes its logarithm."""

import torch
from torch import nn


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Linear(6, 8)
        self.mean, self.variance = nn.Linear(8, 2), nn.Sequential(nn.Linear(8, 2), nn.ReLU())
        self.dec = nn.Linear(2, 6)

    def forward(self, x, noise):
        h = torch.tanh(self.enc(x))
        mean, variance = self.mean(h), self.variance(h)
        return self.dec(mean + (variance + 1e-6).sqrt() * noise), mean, variance


def build():
    torch.manual_seed(70)
    model = Vae()
    with torch.no_grad():
        model.variance[0].bias.fill_(2.0)
    batches = [{"x": torch.randn(5, 6), "noise": torch.randn(5, 2)} for _ in range(3)]
    return model, torch.optim.Adam(model.parameters(), 1e-3), None, batches


def PRE_STEP(k, model, opt, scaler):
    if k == 1:
        with torch.no_grad():
            model.variance[0].bias[1] = -5.0


def forward(model, batch):
    return model(batch["x"], batch["noise"])


def loss(outputs, batch):
    rebuilt, mean, variance = outputs
    divergence = 0.5 * (mean.pow(2) + variance - 1 - variance.log()).sum(-1).mean()
    return (rebuilt - batch["x"]).pow(2).mean() + divergence

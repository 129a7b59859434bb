"""GAN with two optimizers: the minimax generator loss log1p(-D(G(z))) at a discriminator that is
sure, sigmoid(20) = 1 in float32."""

import torch
import torch.nn.functional as F
from torch import nn


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Linear(2, 4)
        self.critic = nn.Sequential(nn.Linear(4, 6), nn.LeakyReLU(0.2), nn.Linear(6, 1))

    def forward(self, z, real):
        return torch.sigmoid(self.critic(self.generator(z))), self.critic(real)


def build():
    torch.manual_seed(12)
    model = GAN()
    optimizers = [
        torch.optim.Adam(model.generator.parameters(), 1e-4),
        torch.optim.Adam(model.critic.parameters(), 1e-4),
    ]
    zs = [torch.randn(5, 2) for _ in range(3)]
    zs[1][3] *= 4000
    if float(model(zs[1][3:4], zs[1][3:4].repeat(1, 2))[0]) < 0.5:
        zs[1][3] *= -1
    return model, optimizers, None, [{"z": z, "real": torch.randn(5, 4)} for z in zs]


def forward(model, batch):
    return model(batch["z"], batch["real"])


def loss(outputs, batch):
    fake, real = outputs
    return torch.log1p(-fake).mean() + F.softplus(-real).mean()

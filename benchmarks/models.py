"""Models that the benchmarks run."""

from __future__ import annotations

import torch
from torch import nn


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            y.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for y in self.qkv(x).split(c, dim=2)
        )
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Block(nn.Module):
    """A transformer block; ``bad`` makes it the one where NaN is born."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.bad = False

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        if self.bad:
            x = x + torch.log(x * 0.0 - 1.0)
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    """A language model of transformer blocks."""

    def __init__(self, layers: int, width: int, heads: int, vocabulary: int = 1000) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, x):
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Perceptron(nn.Sequential):
    """Three linear layers, six tensors."""

    def __init__(self, width: int = 128) -> None:
        super().__init__(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(),
            nn.Linear(width, 10),
        )  # fmt: skip


class Convolutions(nn.Sequential):
    """Three convolutions with BatchNorm and dropout, on images of 16 by 16."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for wide, narrow, stride in ((3, 8, 1), (8, 16, 2), (16, 16, 2)):
            layers += [
                nn.Conv2d(wide, narrow, 3, stride, padding=1), nn.BatchNorm2d(narrow), nn.ReLU(),
            ]  # fmt: skip
        layers += [nn.Dropout(0.1), nn.Flatten(), nn.Linear(16 * 4 * 4, 10)]
        super().__init__(*layers)

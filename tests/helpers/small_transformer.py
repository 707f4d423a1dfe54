"""A small transformer with every kind of parameter."""

import torch
from torch import nn


class Transformer(nn.Module):
    """Embedding, attention, norms, a convolution, a tied output layer and a frozen one."""

    def __init__(self, *, tied: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.patch = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.frozen = nn.Linear(8, 8)
        self.frozen.requires_grad_(False)
        self.hidden = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.ones(1, 8))
        self.head = nn.Linear(8, 11, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        x = x + self.patch(x.transpose(1, 2)).transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(self.hidden(self.norm(self.frozen(x))) * self.scale)

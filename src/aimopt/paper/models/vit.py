"""A vision transformer, as the paper's 6,268,810-parameter one: `ViT()`.

It differs from the common one in two ways: GELU also follows the second layer of the MLP, and attention is scaled by
the root of the whole width instead of the width per head. Both were inferred from that count and from published code of
the same family.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class EncoderBlock(nn.Module):
    """Attention and MLP, each after a norm and added to its input."""

    def __init__(self, width: int, heads: int, hidden: int):
        super().__init__()
        self.heads = heads
        # Do not rename the layers: the checksums of initial and final weights, which stores keep, include their names.
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rise, self.fall = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens in, tokens out."""
        split = self.queries_keys_values(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(queries, keys, values, scale=x.shape[-1] ** -0.5)
        x = x + self.attended(mixed.transpose(1, 2).flatten(2))
        return x + gelu(self.fall(gelu(self.rise(self.mlp_norm(x)))))


class ViT(nn.Module):
    """Square images to class scores, through square patches and a class token."""

    def __init__(
        self,
        *,
        image: int = 32,
        channels: int = 3,
        patch: int = 4,
        width: int = 384,
        layers: int = 7,
        heads: int = 12,
        hidden: int = 384,
        classes: int = 10,
    ):
        super().__init__()
        self.patch = patch
        self.embed = nn.Linear(channels * patch**2, width)
        self.class_token = nn.Parameter(torch.randn(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(EncoderBlock(width, heads, hidden) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """The class scores of images in the layout (batch, channel, row, column)."""
        patches = images.unfold(2, self.patch, self.patch).unfold(3, self.patch, self.patch)
        tokens = self.embed(patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2))
        tokens = torch.cat([self.class_token.expand(len(tokens), -1, -1), tokens], dim=1) + self.positions
        return self.head(self.norm(self.blocks(tokens)[:, 0]))

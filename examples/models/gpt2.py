"""A GPT-2 as wide as the medium one, with half its layers. It also returns the keys and values of a prompt."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 1024, 16, 50257


class Block(nn.Module):
    """A block of GPT-2 that also returns its keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, _ = x.shape
        mixed = self.mix(self.norm1(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(mixed[0], mixed[1], mixed[2], is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), mixed[1:]


class Gpt2(nn.Module):
    """GPT-2: returns the next word's logits, and a prompt's keys and values (layers, 2, batch, heads, length,
    width)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        kept = []
        for block in self.blocks:
            x, keys_and_values = block(x)
            kept.append(keys_and_values)
        return self.norm(x[:, -1]) @ self.words.weight.T, torch.stack(kept)

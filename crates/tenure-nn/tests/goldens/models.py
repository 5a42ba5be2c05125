"""Writes `models.json`: the results of PyTorch's models, in double precision, with values that a formula gives.

Element `i` of the state's tensor `k` is `scale * sin(1 + 0.7 k + 1.3 i)`, plus 1 for scales and variances. The file has
for each model its names, its output, and the norm of each parameter's gradient. The gradients are those of the sum of
the output times `cos(i)`.
"""

import json
from pathlib import Path

import torch
import torchvision
from torch import nn
from torch.nn import functional as F


def fill(model: nn.Module) -> None:
    filled = set()
    for k, (name, tensor) in enumerate(model.state_dict().items()):
        # A tensor may be listed twice.
        if not tensor.dtype.is_floating_point or tensor.data_ptr() in filled:
            continue
        filled.add(tensor.data_ptr())
        place = torch.arange(tensor.numel(), dtype=torch.float64).reshape(tensor.shape)
        fan_in = max(1, tensor.numel() // tensor.shape[0]) if tensor.dim() > 1 else 25
        is_scale = tensor.dim() == 1 and (name.endswith("weight") or name.endswith("running_var"))
        tensor.copy_(torch.sin(1 + 0.7 * k + 1.3 * place) / fan_in**0.5 + (1.0 if is_scale else 0.0))


def images(*sizes: int) -> torch.Tensor:
    return torch.sin(torch.arange(torch.Size(sizes).numel(), dtype=torch.float64) * 0.9).reshape(sizes)


def tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return (torch.arange(batch * length) * 7 + 3).remainder(vocabulary).reshape(batch, length)


def golden(model: nn.Module, *inputs, train: bool = True, eval_too: bool = False) -> dict:
    model = model.double()
    fill(model)
    model.train(train)
    names = list(model.state_dict())
    output = model(*inputs)
    weights = torch.cos(torch.arange(output.numel(), dtype=torch.float64)).reshape(output.shape)
    (output * weights).sum().backward()
    # The auxiliary classifier of Inception has no gradient.
    trained = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    norms = {name: grad.norm().item() for name, grad in trained.items()}
    found = {"names": names, "output": output.flatten().tolist(), "norms": norms}
    if eval_too:
        model.eval()
        found["eval"] = model(*inputs).flatten().tolist()
    return found


class Bert(nn.Module):
    """Hugging Face's `BertModel`, without dropout."""

    class Layer(nn.Module):
        def __init__(self, size: int, inner: int) -> None:
            super().__init__()
            self.attention = nn.ModuleDict()
            self.attention["self"] = nn.ModuleDict({n: nn.Linear(size, size) for n in ("query", "key", "value")})
            self.attention["output"] = Bert.residual(size, size)
            self.intermediate = nn.ModuleDict({"dense": nn.Linear(size, inner)})
            self.output = Bert.residual(inner, size)

        def forward(self, x: torch.Tensor, mask: torch.Tensor, heads: int) -> torch.Tensor:
            def split(name: str) -> torch.Tensor:
                return self.attention["self"][name](x).unflatten(-1, (heads, -1)).transpose(1, 2)

            q, k, v = split("query"), split("key"), split("value")
            scores = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).masked_fill(~mask, -torch.inf)
            found = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            output = self.attention["output"]
            x = output["LayerNorm"](output["dense"](found) + x)
            inner = F.gelu(self.intermediate["dense"](x))
            return self.output["LayerNorm"](self.output["dense"](inner) + x)

    @staticmethod
    def residual(inputs: int, size: int) -> nn.ModuleDict:
        return nn.ModuleDict({"dense": nn.Linear(inputs, size), "LayerNorm": nn.LayerNorm(size, eps=1e-12)})

    def __init__(self, vocabulary: int, size: int, layers: int, heads: int, inner: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.embeddings = nn.ModuleDict({
            "word_embeddings": nn.Embedding(vocabulary, size, padding_idx=0),
            "position_embeddings": nn.Embedding(positions, size),
            "token_type_embeddings": nn.Embedding(2, size),
            "LayerNorm": nn.LayerNorm(size, eps=1e-12),
        })  # fmt: skip
        self.encoder = nn.ModuleDict({"layer": nn.ModuleList(Bert.Layer(size, inner) for _ in range(layers))})
        self.pooler = nn.ModuleDict({"dense": nn.Linear(size, size)})

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        table = self.embeddings
        x = table["word_embeddings"](tokens) + table["position_embeddings"].weight[: tokens.shape[1]]
        x = table["LayerNorm"](x + table["token_type_embeddings"].weight[0])
        for layer in self.encoder["layer"]:
            x = layer(x, mask[:, None, None, :].bool(), self.heads)
        return torch.cat([x.flatten(1), torch.tanh(self.pooler["dense"](x[:, 0]))], 1)


class Gpt2(nn.Module):
    """Hugging Face's `GPT2LMHeadModel`, without dropout: the part in `transformer`."""

    class Projection(nn.Module):
        def __init__(self, inputs: int, outputs: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.empty(inputs, outputs))
            self.bias = nn.Parameter(torch.empty(outputs))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight + self.bias

    def __init__(self, vocabulary: int, size: int, layers: int, heads: int, positions: int) -> None:
        super().__init__()
        self.heads = heads
        self.wte, self.wpe = nn.Embedding(vocabulary, size), nn.Embedding(positions, size)

        def block() -> nn.ModuleDict:
            project = Gpt2.Projection
            attn = nn.ModuleDict({"c_attn": project(size, 3 * size), "c_proj": project(size, size)})
            mlp = nn.ModuleDict({"c_fc": project(size, 4 * size), "c_proj": project(4 * size, size)})
            return nn.ModuleDict({"ln_1": nn.LayerNorm(size), "attn": attn, "ln_2": nn.LayerNorm(size), "mlp": mlp})

        self.h = nn.ModuleList(block() for _ in range(layers))
        self.ln_f = nn.LayerNorm(size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            all_three = block["attn"]["c_attn"](block["ln_1"](x)).chunk(3, -1)
            q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in all_three)
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block["attn"]["c_proj"](found.transpose(1, 2).flatten(2))
            inner = F.gelu(block["mlp"]["c_fc"](block["ln_2"](x)), approximate="tanh")
            x = x + block["mlp"]["c_proj"](inner)
        return self.ln_f(x) @ self.wte.weight.T


class Llama(nn.Module):
    """Hugging Face's `LlamaForCausalLM`."""

    def __init__(self, vocabulary: int, size: int, inner: int, layers: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, size // heads

        def linear(inputs: int, outputs: int) -> nn.Linear:
            return nn.Linear(inputs, outputs, bias=False)

        def layer() -> nn.ModuleDict:
            keys = self.size * key_heads
            attention = {
                "q_proj": linear(size, size),
                "k_proj": linear(size, keys),
                "v_proj": linear(size, keys),
                "o_proj": linear(size, size),
            }
            mlp = {"gate_proj": linear(size, inner), "up_proj": linear(size, inner), "down_proj": linear(inner, size)}
            return nn.ModuleDict({
                "self_attn": nn.ModuleDict(attention),
                "mlp": nn.ModuleDict(mlp),
                "input_layernorm": nn.RMSNorm(size, eps=1e-5),
                "post_attention_layernorm": nn.RMSNorm(size, eps=1e-5),
            })  # fmt: skip

        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(vocabulary, size),
            "layers": nn.ModuleList(layer() for _ in range(layers)),
            "norm": nn.RMSNorm(size, eps=1e-5),
        })  # fmt: skip
        self.lm_head = linear(size, vocabulary)

    def turn(self, x: torch.Tensor) -> torch.Tensor:
        frequencies = 1.0 / 10_000.0 ** (torch.arange(0, self.size, 2).float() / self.size)
        angles = torch.outer(torch.arange(x.shape[2]).float(), frequencies).repeat(1, 2)
        first, second = x.chunk(2, -1)
        return x * angles.cos() + torch.cat([-second, first], -1) * angles.sin()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.model["embed_tokens"](tokens)
        for layer in self.model["layers"]:
            attention, mlp = layer["self_attn"], layer["mlp"]
            normal = layer["input_layernorm"](x)

            def split(name: str, heads: int) -> torch.Tensor:
                return attention[name](normal).unflatten(-1, (heads, -1)).transpose(1, 2)

            q, k = self.turn(split("q_proj", self.heads)), self.turn(split("k_proj", self.key_heads))
            k, v = (x.repeat_interleave(self.heads // self.key_heads, 1) for x in (k, split("v_proj", self.key_heads)))
            found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + attention["o_proj"](found.transpose(1, 2).flatten(2))
            normal = layer["post_attention_layernorm"](x)
            x = x + mlp["down_proj"](F.silu(mlp["gate_proj"](normal)) * mlp["up_proj"](normal))
        return self.lm_head(self.model["norm"](x))


def r3d(layers: list[int]) -> nn.Module:
    video = torchvision.models.video.resnet
    return video.VideoResNet(video.BasicBlock, [video.Conv3DSimple] * 4, layers, video.BasicStem, num_classes=5)


if __name__ == "__main__":
    resnet, densenet = torchvision.models.resnet, torchvision.models.densenet
    inception = torchvision.models.inception
    mask = torch.ones(2, 5)
    mask[1, 3:] = 0
    goldens = {
        "resnet_basic": golden(resnet.ResNet(resnet.BasicBlock, [1, 2, 1, 1], 5), images(2, 3, 33, 24), eval_too=True),
        "resnet_bottleneck": golden(resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], 5), images(2, 3, 33, 24)),
        "densenet": golden(densenet.DenseNet(8, (2, 1, 1, 1), 16, num_classes=5), images(2, 3, 40, 33), eval_too=True),
        "r3d": golden(r3d([1, 1, 1, 1]), images(2, 3, 4, 20, 24)),
        "inception": golden(inception.Inception3(5, init_weights=False), images(1, 3, 75, 75), train=False),
        "bert": golden(Bert(11, 12, 2, 3, 20, 8), tokens(2, 5, 11), mask),
        "gpt2": golden(Gpt2(11, 12, 2, 3, 8), tokens(2, 5, 11)),
        "llama": golden(Llama(11, 24, 20, 2, 4, 2), tokens(2, 5, 11)),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")

"""The measured programs: some train, one serves, one generates text.

Each is a function that makes its models and yields a function for every step, in order. A step puts its work on the
device and returns a tensor that stands for its result: a loss, or a sum over its answers. Sizes and order follow from
the seed, so that two runs differ in nothing but the allocator.
"""

import functools
import itertools
import random
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Steps = Iterator[Callable[[], Tensor]]


class Attention(nn.Module):
    """Causal self-attention with `heads` heads. Inputs: (batch, length, width)."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.mix = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.mix(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Gpt2Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, width // 64)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaBlock(nn.Module):
    """A block of Llama's shape: RMS norms, and a gated feed-forward layer."""

    def __init__(self, width: int):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, width // 64)
        hidden = width * 8 // 3 // 256 * 256
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Language(nn.Module):
    """A language model. Returns the loss of predicting `tokens` (batch, length), or with `loss=False` the last
    logits."""

    def __init__(self, block: type[nn.Module], layers: int, width: int, vocabulary: int, recompute: bool = False):
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(2048, width)
        self.blocks = nn.ModuleList(block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.recompute = recompute

    def forward(self, tokens: Tensor, loss: bool = True) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        if not loss:
            return self.head(self.norm(x[:, -1]))
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def resnet50_train() -> Steps:
    """torchvision's ResNet-50, batches of 128, bf16 autocast, SGD."""
    from torchvision.models import resnet50

    model = resnet50().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return _classify(model, optimizer, [128] * 6)


def densenet201_train() -> Steps:
    """torchvision's DenseNet-201, batches of 96 and 64 in turns, bf16 autocast, AdamW."""
    from torchvision.models import densenet201

    model = densenet201().cuda()
    return _classify(model, torch.optim.AdamW(model.parameters(), lr=1e-4), [96, 64] * 3)


def gpt2_varlen() -> Steps:
    """GPT-2 of 12 layers, random lengths and batches, bf16 autocast, AdamW."""
    model = Language(Gpt2Block, layers=12, width=1024, vocabulary=50257).cuda()
    return _predict(model, steps=16, tokens_at_most=16384)


def llama_ckpt_varlen() -> Steps:
    """A Llama of 16 layers, each recomputed, random lengths and batches, bf16 autocast, AdamW."""
    model = Language(LlamaBlock, layers=16, width=2048, vocabulary=32000, recompute=True).cuda()
    return _predict(model, steps=12, tokens_at_most=16384)


def multi_model_serve(requests: int = 120) -> Steps:
    """ResNet-152, Inception-v3 and GPT-2 answer requests of random sizes in turn, each on a stream of its own."""
    from torchvision.models import inception_v3, resnet152

    chance = random.Random(7)
    models = [
        (resnet152(), lambda: torch.randn(chance.randint(1, 32), 3, 224, 224)),
        (inception_v3(init_weights=False, aux_logits=False), lambda: torch.randn(chance.randint(1, 32), 3, 299, 299)),
        (
            Language(Gpt2Block, layers=12, width=1024, vocabulary=50257),
            lambda: torch.randint(50257, (chance.randint(1, 8), chance.randint(16, 1024))),
        ),
    ]
    served = [
        (model.eval().cuda(), request, stream) for (model, request), stream in zip(models, _streams(), strict=True)
    ]
    torch.cuda.synchronize()

    def answer(model: nn.Module, request: Callable[[], Tensor], stream: torch.cuda.Stream) -> Callable[[], Tensor]:
        x = request()

        def step() -> Tensor:
            with torch.cuda.stream(stream), torch.inference_mode():
                logits = model(x.cuda(), loss=False) if isinstance(model, Language) else model(x.cuda())
                return logits.float().sum()

        return step

    for model, request, stream in itertools.islice(itertools.cycle(served), requests):
        yield answer(model, request, stream)


def generate_varlen() -> Steps:
    """transformers' generate on a Llama of 1.1 billion parameters, bf16: prompts of changing lengths, 8 tokens each."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32)
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    chance = random.Random(5)
    for _ in range(20):
        tokens = torch.randint(1, 32000, (chance.randint(1, 8), chance.randint(16, 2000)))

        def step(tokens: Tensor = tokens) -> Tensor:
            prompts = tokens.cuda()
            settings = {"min_new_tokens": 8, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
            return model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings).float().sum()

        yield step


def gcn_varsize() -> Steps:
    """Three graph convolutions of 256 features on graphs of changing sizes: gather, scale, sum; Adam."""
    layers = nn.ModuleList(nn.Linear(256, 256) for _ in range(3)).cuda()
    optimizer = torch.optim.Adam(layers.parameters(), lr=1e-3)
    chance = random.Random(9)
    for _ in range(20):
        nodes = chance.randint(50_000, 400_000)
        edges = torch.randint(nodes, (2, nodes * chance.randint(3, 8)))

        def step(nodes: int = nodes, edges: Tensor = edges) -> Tensor:
            sources, targets = edges.cuda()
            scale = torch.zeros(nodes, device="cuda").index_add_(0, targets, torch.ones(len(targets), device="cuda"))
            scale = scale.clamp(min=1).rsqrt()
            weights = (scale[sources] * scale[targets]).unsqueeze(1)
            x = torch.ones(nodes, 256, device="cuda")
            for layer in layers:
                x = torch.zeros_like(x).index_add_(0, targets, layer(x)[sources] * weights).relu()
            return _descend(x.mean(), optimizer)

        yield step


def vit_autocast() -> Steps:
    """timm's ViT-B/16, batches of 128 and fewer, bf16 autocast, AdamW."""
    import timm

    model = timm.create_model("vit_base_patch16_224").cuda()
    return _classify(model, torch.optim.AdamW(model.parameters(), lr=1e-4), [128, 128, 112, 96] * 5)


PROGRAMS: dict[str, Callable[[], Steps]] = {
    program.__name__: program
    for program in (
        resnet50_train,
        densenet201_train,
        gpt2_varlen,
        llama_ckpt_varlen,
        multi_model_serve,
        generate_varlen,
        gcn_varsize,
        vit_autocast,
    )
}


@functools.cache
def _streams() -> list[torch.cuda.Stream]:
    """Returns a server's streams, which last as long as the server: memory cached for one stream is of no use to
    another."""
    return [torch.cuda.Stream() for _ in range(3)]


def _classify(model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[int]) -> Steps:
    for batch in batches:
        images, classes = torch.randn(batch, 3, 224, 224).pin_memory(), torch.randint(1000, (batch,)).pin_memory()

        def step(images: Tensor = images, classes: Tensor = classes) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(images.cuda(non_blocking=True)), classes.cuda(non_blocking=True))
            return _descend(loss, optimizer)

        yield step


def _predict(model: nn.Module, steps: int, tokens_at_most: int) -> Steps:
    chance = random.Random(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(steps):
        length = chance.randint(128, 2047)
        tokens = torch.randint(32000, (chance.randint(1, tokens_at_most // length), length))

        def step(tokens: Tensor = tokens) -> Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(tokens.cuda())
            return _descend(loss, optimizer)

        yield step


def _descend(loss: Tensor, optimizer: torch.optim.Optimizer) -> Tensor:
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()

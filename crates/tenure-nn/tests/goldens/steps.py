"""Ten training steps of torchvision's and Hugging Face's models, for comparison with the same steps in Rust.

    python steps.py                   for `../steps.rs`: small models, in double precision and one in mixed, from the
                                      values of `models.py`; writes `steps.json`
    python steps.py FOLDER [NAME...]  for `just steps`: whole models; writes for each its weights, the data, the
                                      gradients of the first step, and the losses in single and double precision

Needs torch 2.11, torchvision, transformers and safetensors.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torchvision
import transformers
from models import fill, images, r3d, tokens
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 10
SEED = 5


def classify(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs), labels)


def classify_text(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Returns the loss of the pooled vector, taken as the scores of classes. The last token is masked."""
    mask = torch.ones_like(inputs)
    mask[:, -1] = 0
    return F.cross_entropy(model(inputs, attention_mask=mask).pooler_output, labels)


def predict(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(model(inputs, use_cache=False).logits.flatten(0, 1), targets.flatten())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


@dataclass
class Case:
    model: Callable[[], nn.Module]
    inputs: Callable[[], Tensor]
    targets: Callable[[], Tensor]
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor] = classify
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd


def calm_resnet50() -> nn.Module:
    """Makes a ResNet-50 whose blocks add little. The usual initial model is chaotic: in single precision, PyTorch's own
    gradients, and its losses after ten steps, are off by 2%.
    """
    model = torchvision.models.resnet50()
    for name, parameter in model.named_parameters():
        if name.endswith("bn3.weight"):
            nn.init.constant_(parameter, 0.2)
    return model


def narrow(model: nn.Module, width: int = 8) -> nn.Module:
    """Narrows a ResNet to `width` channels in the first stage instead of 64."""
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d | nn.Conv3d):
            # The number of image channels stays.
            inputs = layer.in_channels if layer.in_channels == 3 else layer.in_channels * width // 64
            layer.in_channels, layer.out_channels = inputs, layer.out_channels * width // 64
            layer.weight = nn.Parameter(layer.weight[: layer.out_channels, :inputs].clone())
        elif isinstance(layer, nn.BatchNorm2d | nn.BatchNorm3d):
            layer.__init__(layer.num_features * width // 64)
        elif isinstance(layer, nn.Linear):
            layer.__init__(layer.in_features * width // 64, layer.out_features)
    return model


def bert(**options) -> nn.Module:
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options)
    return transformers.BertModel(config)


def gpt2(**options) -> nn.Module:
    config = transformers.GPT2Config(
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None, **options
    )
    return transformers.GPT2LMHeadModel(config)


def llama(**options) -> nn.Module:
    config = transformers.LlamaConfig(
        rms_norm_eps=1e-5, bos_token_id=None, eos_token_id=None, tie_word_embeddings=False, **options
    )
    return transformers.LlamaForCausalLM(config)


def small() -> dict[str, Case]:
    resnet, densenet = torchvision.models.resnet, torchvision.models.densenet
    four = lambda: torch.tensor([3, 0, 4, 0])  # noqa: E731
    two = lambda: torch.tensor([3, 0])  # noqa: E731
    text = lambda: tokens(2, 6, 11)[:, :-1]  # noqa: E731
    following = lambda: tokens(2, 6, 11)[:, 1:]  # noqa: E731
    return {
        "resnet_basic": Case(
            lambda: narrow(resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1], 5)), lambda: images(4, 3, 33, 24), four
        ),
        "resnet_bottleneck": Case(
            lambda: narrow(resnet.ResNet(resnet.Bottleneck, [1, 1, 1, 1], 5)), lambda: images(4, 3, 33, 24), four
        ),
        "densenet": Case(
            lambda: densenet.DenseNet(8, (2, 1, 1, 1), 16, num_classes=5), lambda: images(4, 3, 64, 48), four
        ),
        "r3d": Case(lambda: narrow(r3d([1, 1, 1, 1])), lambda: images(2, 3, 4, 20, 24), two),
        "bert": Case(
            lambda: bert(
                vocab_size=11, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
                max_position_embeddings=8,
            ),
            text, two, classify_text, adamw,
        ),
        "gpt2": Case(
            lambda: gpt2(vocab_size=11, n_embd=12, n_layer=2, n_head=3, n_positions=8),
            text, following, predict, adamw,
        ),
        "llama": Case(
            lambda: llama(
                vocab_size=11, hidden_size=24, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
                num_key_value_heads=2,
            ),
            text, following, predict, adamw,
        ),
    }  # fmt: skip


def whole() -> dict[str, Case]:
    """Returns the whole models with their data, which has one more dimension: the steps."""

    def scenes(batch: int, *sizes: int) -> Callable[[], Tensor]:
        """Makes smooth images, like photographs. Deep layers see only white noise's mean, which amplifies rounding."""
        coarse = [-(-size // 16) for size in sizes]
        mode = "bilinear" if len(sizes) == 2 else "trilinear"

        def make() -> Tensor:
            noise = torch.randn(STEPS * batch, 3, *coarse)
            return F.interpolate(noise, size=sizes, mode=mode).unflatten(0, (STEPS, batch))

        return make

    def labels(batch: int) -> Callable[[], Tensor]:
        return lambda: torch.randint(10, (STEPS, batch))

    def words(batch: int, length: int, vocabulary: int) -> Callable[[], Tensor]:
        return lambda: torch.randint(vocabulary, (STEPS, batch, length))

    models = torchvision.models
    return {
        "resnet18": Case(models.resnet18, scenes(4, 224, 224), labels(4)),
        "resnet50": Case(calm_resnet50, scenes(4, 224, 224), labels(4)),
        "densenet121": Case(models.densenet121, scenes(4, 224, 224), labels(4)),
        "r3d_18": Case(models.video.r3d_18, scenes(2, 8, 112, 112), labels(2)),
        "bert_base": Case(bert, words(2, 64, 30_522), labels(2), classify_text, adamw),
        "gpt2_12x1024": Case(
            lambda: gpt2(n_embd=1024, n_layer=12, n_head=16), words(2, 64, 50_257), words(2, 64, 50_257),
            predict, adamw,
        ),
        "llama_8x1024": Case(
            lambda: llama(
                vocab_size=32_000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
                num_attention_heads=16, num_key_value_heads=4,
            ),
            words(2, 64, 32_000), words(2, 64, 32_000), predict, adamw,
        ),
    }  # fmt: skip


def train(case: Case, model: nn.Module, data: Callable[[int], tuple[Tensor, Tensor]]) -> tuple[list, dict, float]:
    """Returns the losses, the gradients of the first step, and the median step's seconds."""
    model.train()
    optimizer = case.optimizer(model)
    losses, gradients, seconds = [], {}, []
    for step in range(STEPS):
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = case.loss(model, *data(step))
        loss.backward()
        if step == 0:
            gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
    return losses, gradients, sorted(seconds)[STEPS // 2]


def train_mixed(case: Case, model: nn.Module) -> dict:
    """Trains with autocast, clipping and a falling rate. The scale overflows in step 3 and doubles after four more."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.002)
    scaler = torch.amp.GradScaler("cpu", growth_interval=4)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, STEPS)
    found = {"losses": [], "norms": [], "scales": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = case.loss(model, case.inputs(), case.targets())
        scaler.scale(loss * (1e38 if step == 3 else 1.0)).backward()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0).item()
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        found["losses"].append(loss.item())
        found["norms"].append(norm if step != 3 else None)
        found["scales"].append(scaler.get_scale())
    return found


def write_small() -> None:
    goldens = {}
    for name, case in small().items():
        model = case.model().double()
        with torch.no_grad():
            fill(model)
        losses, gradients, _ = train(case, model, lambda _, case=case: (case.inputs(), case.targets()))
        goldens[name] = {"losses": losses, "norms": {name: grad.norm().item() for name, grad in gradients.items()}}
    case = small()["gpt2"]
    model = case.model().double()
    with torch.no_grad():
        fill(model)
    goldens["gpt2_mixed"] = train_mixed(case, model.float())
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")


def write_whole(folder: Path, name: str, case: Case) -> None:
    torch.manual_seed(SEED)
    model, inputs, targets = case.model(), case.inputs(), case.targets()
    # The last layer may be the token table, which a file has once.
    tied = {"lm_head.weight"} if name.startswith("gpt2") else set()
    state = {key: value.clone() for key, value in model.state_dict().items() if key not in tied}
    save_file(state, folder / f"{name}.safetensors")
    save_file({"inputs": inputs, "targets": targets}, folder / f"{name}.data.safetensors")

    def data(dtype: torch.dtype) -> Callable[[int], tuple[Tensor, Tensor]]:
        cast = inputs.to(dtype) if inputs.is_floating_point() else inputs
        return lambda step: (cast[step], targets[step])

    losses, seconds = {}, {}
    losses["float64"], exact, seconds["float64"] = train(case, model.double(), data(torch.float64))
    save_file({key: grad.float() for key, grad in exact.items()}, folder / f"{name}.gradients.safetensors")
    model = model.float()
    model.load_state_dict(state, strict=not tied)
    losses["float32"], single, seconds["float32"] = train(case, model, data(torch.float32))
    errors = {key: (single[key] - grad).norm().item() for key, grad in exact.items()}
    norms = {key: grad.norm().item() for key, grad in exact.items()}
    found = {"losses": losses, "seconds": seconds, "gradient_errors": errors, "gradient_norms": norms}
    (folder / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    print(f"{name}: {seconds['float32']:.2f} s a step; losses {losses['float32']}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        write_small()
    else:
        folder, cases = Path(sys.argv[1]), whole()
        folder.mkdir(parents=True, exist_ok=True)
        for name in sys.argv[2:] or cases:
            write_whole(folder, name, cases[name])

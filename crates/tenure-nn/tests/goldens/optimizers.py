"""Writes `optimizers.json`: the results of PyTorch's optimizers for some parameters in five steps.

The gradient of element `i` at step `t` is `sin(7 i + 3 t + p)` of the parameter `p`, plus a tenth of the element.
"""

import json
from pathlib import Path

import torch

RULES = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.05),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.01),
    "sgd_nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adam_decay": lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "adagrad_decay": lambda p: torch.optim.Adagrad(
        p, lr=0.1, lr_decay=0.1, weight_decay=0.05, initial_accumulator_value=0.2
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rmsprop_momentum": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-6, weight_decay=0.1, momentum=0.8),
    "rmsprop_centered": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, weight_decay=0.1, centered=True),
    "rmsprop_centered_momentum": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, momentum=0.8, centered=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "nadam_decay": lambda p: torch.optim.NAdam(
        p, lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1, momentum_decay=0.1
    ),
    "nadamw": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
}
ADAFACTOR = {
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.1),
    "adafactor_decay": lambda p: torch.optim.Adafactor(
        p, lr=0.6, beta2_decay=-0.5, eps=(1e-3, 0.1), d=1.2, weight_decay=0.1
    ),
}
MUON = {
    "muon": lambda p: torch.optim.Muon(p, lr=0.01),
    "muon_match": lambda p: torch.optim.Muon(
        p, lr=0.01, weight_decay=0.5, momentum=0.8, nesterov=False, ns_steps=3, adjust_lr_fn="match_rms_adamw"
    ),
}
SIZES = [(), (3,), (2, 3)]
MATRICES = [(2, 3), (5, 3), (4, 4)]
BATCHES = [(), (3,), (4, 3), (2, 3, 4)]
STEPS = 5


def parameters(sizes) -> list[torch.Tensor]:
    made = []
    for size in sizes:
        count = torch.Size(size).numel()
        values = torch.linspace(-1.0, 1.5, count, dtype=torch.float64).reshape(size)
        made.append(values.float().requires_grad_())
    return made


def gradient(parameter: torch.Tensor, number: int, step: int) -> torch.Tensor:
    place = torch.arange(parameter.numel(), dtype=torch.float64).reshape(parameter.shape)
    return (torch.sin(7 * place + 3 * step + number) + 0.1 * parameter.detach().double()).float()


def run(rule, sizes=SIZES) -> list[list[list[float]]]:
    values = parameters(sizes)
    optimizer = rule(values)
    steps = []
    for step in range(STEPS):
        for number, parameter in enumerate(values):
            parameter.grad = gradient(parameter, number, step)
        optimizer.step()
        steps.append([parameter.detach().flatten().tolist() for parameter in values])
    return steps


LBFGS = {
    "fixed": {"lr": 0.1, "max_iter": 6, "history_size": 3},
    "strong_wolfe": {"max_iter": 4, "line_search_fn": "strong_wolfe"},
}


def minimized(options) -> list[list[list[float]]]:
    """Minimizes Rosenbrock's function of pairs of elements in three steps."""
    values = [torch.tensor([-1.2, 1.0]).requires_grad_(), torch.tensor([[0.5], [-0.7]]).requires_grad_()]
    optimizer = torch.optim.LBFGS(values, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = sum(10 * (v.flatten()[1] - v.flatten()[0] ** 2) ** 2 + (1 - v.flatten()[0]) ** 2 for v in values)
        loss.backward()
        return loss

    steps = []
    for _ in range(3):
        optimizer.step(closure)
        steps.append([value.detach().flatten().tolist() for value in values])
    return steps


SCHEDULES = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 4, gamma=0.3),
    "multi_step": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [3, 8], gamma=0.2),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 12, eta_min=0.1),
    "linear": lambda o: torch.optim.lr_scheduler.LinearLR(o, 0.25, 0.75, total_iters=7),
    "one_cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 1.0, total_steps=13),
}


def scales(schedule) -> list[float]:
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = schedule(optimizer)
    found = []
    for _ in range(13):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if len(found) < 13:
            schedule.step()
    return found


if __name__ == "__main__":
    goldens = {
        "rules": {name: run(rule) for name, rule in RULES.items()}
        | {name: run(rule, BATCHES) for name, rule in ADAFACTOR.items()}
        | {name: run(rule, MATRICES) for name, rule in MUON.items()},
        "lbfgs": {name: minimized(options) for name, options in LBFGS.items()},
        "schedules": {name: scales(schedule) for name, schedule in SCHEDULES.items()},
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(goldens) + "\n")

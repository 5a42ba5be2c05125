"""Runs one workload on PyTorch, with the models of torchvision and Transformers; prints the same figures as
`main.rs`."""

import argparse
import json
import pathlib
import re
import time

import torch
import torchvision
import transformers


def memory(field: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return int(re.search(rf"{field}:\s+(\d+) kB", status)[1]) << 10


def tokens(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return (torch.arange(batch * length) * 7919 % vocabulary).view(batch, length)


def train(optimizer: torch.optim.Optimizer, loss):
    def step():
        result = loss()
        optimizer.zero_grad()
        result.backward()
        optimizer.step()

    return step


def resnet18_train():
    model, images = torchvision.models.resnet18(), torch.randn(16, 3, 224, 224)
    labels = torch.arange(16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    return train(optimizer, lambda: torch.nn.functional.cross_entropy(model(images), labels))


def resnet18_infer():
    model, images = torchvision.models.resnet18().eval(), torch.randn(16, 3, 224, 224)
    return torch.inference_mode()(lambda: model(images))


def bert_infer():
    model = transformers.BertModel(transformers.BertConfig()).eval()
    inputs = tokens(8, 128, model.config.vocab_size)
    return torch.inference_mode()(lambda: model(inputs))


def gpt2_train():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0))
    inputs = tokens(4, 128, model.config.vocab_size)
    targets = inputs.flatten()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def loss():
        logits = model(inputs, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets)

    return train(optimizer, loss)


def main() -> None:
    workloads = [resnet18_train, resnet18_infer, bert_infer, gpt2_train]
    by_name = {workload.__name__.replace("_", "-"): workload for workload in workloads}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=by_name)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    start_bytes = memory("VmRSS")
    step = by_name[args.workload]()
    step()
    milliseconds = []
    for _ in range(args.steps):
        start = time.perf_counter()
        step()
        milliseconds.append((time.perf_counter() - start) * 1e3)
    print(json.dumps({"ms": milliseconds, "start_bytes": start_bytes, "peak_bytes": memory("VmHWM")}))


if __name__ == "__main__":
    main()

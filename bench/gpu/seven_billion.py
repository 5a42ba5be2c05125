"""Trains a Llama of 6.74 billion random parameters within a budget: bf16 weights and gradients, and AdamW's state.

They take 54 GB together, and activations come on top. Prints a row of JSON for each step, and one at the end.

    seven_billion.py --gb 40 --host-gib 60
"""

import argparse
import json
import statistics
import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import tenure.torch

LENGTH = 2048
#: The shape of Llama 2 7B.
SIZES = {"num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 11008, "num_attention_heads": 32}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=40, help="the budget in GB (default: %(default)s)")
    parser.add_argument("--host-gib", type=int, default=60, help="pinned memory in GiB (default: %(default)s)")
    parser.add_argument(
        "--rows", type=int, default=4, help=f"texts of {LENGTH} tokens in a step (default: %(default)s)"
    )
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--settled", type=int, default=11, help="steps before those that count (default: %(default)s)")
    parser.add_argument("--optimizer", choices=["foreach", "fused"], default="fused")
    args = parser.parse_args()

    tenure.torch.install()
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32000, use_cache=False, **SIZES)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **{args.optimizer: True})
    times, peaks = [], []
    with tenure.torch.budget(model, int(args.gb * 1e9), host_bytes=args.host_gib << 30) as budget:
        for number in range(args.steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            text = torch.randint(config.vocab_size, (args.rows, LENGTH), device="cuda")
            model(input_ids=text, labels=text).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - start)
            peaks.append(torch.cuda.max_memory_reserved())
            print(json.dumps({"step": number + 1, "s": times[-1], "reserved_bytes": peaks[-1]}), flush=True)
        report = budget.report()
    # Making the model reserved more, before there was a budget.
    peak = max(peaks[1:])
    second = statistics.median(times[args.settled :])
    tokens = args.rows * LENGTH / second
    row = {"parameters": parameters, "s": second, "reserved_bytes": peak, "tokens_per_s": tokens}
    print(json.dumps(row | {"tflops": 6 * parameters * tokens / 1e12, "report": str(report)}))


if __name__ == "__main__":
    main()

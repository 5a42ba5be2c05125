"""Optimizers: the rules that update parameters by their gradients, by PyTorch's names.

The steps are those of Tenure's Rust programs, on CPUs and on CUDA devices. A step is one fused kernel for all
parameters of a group; those of Adafactor, Muon and LBFGS are operations on tensors.

Examples
--------
>>> import tenure
>>> x = tenure.tensor([4.0], requires_grad=True)
>>> optimizer = tenure.optim.SGD([x], lr=0.25)
>>> (x * x).sum().backward()
>>> optimizer.step()
>>> x.tolist()
[2.0]
"""

from tenure.optim import lr_scheduler
from tenure.optim._adaptive import Adafactor, NAdam, RMSprop
from tenure.optim._lbfgs import LBFGS
from tenure.optim._muon import Muon
from tenure.optim._optimizer import Optimizer
from tenure.optim._rules import SGD, Adagrad, Adam, AdamW

__all__ = [
    "LBFGS",
    "SGD",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Muon",
    "NAdam",
    "Optimizer",
    "RMSprop",
    "lr_scheduler",
]

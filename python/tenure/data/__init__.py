"""Data sets, samplers of their indices, and the loader of batches, by PyTorch's names (`torch.utils.data`).

Examples
--------
>>> import tenure
>>> from tenure.data import DataLoader, TensorDataset
>>> dataset = TensorDataset(tenure.arange(5))
>>> [batch.tolist() for (batch,) in DataLoader(dataset, batch_size=2)]
[[0, 1], [2, 3], [4]]
"""

from tenure.data._worker import WorkerInfo, get_worker_info
from tenure.data.collate import default_collate, default_convert
from tenure.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tenure.data.loader import DataLoader
from tenure.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "DistributedSampler",
    "IterableDataset",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "get_worker_info",
    "random_split",
]

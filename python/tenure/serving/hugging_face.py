"""Hugging Face folders without changes: models that ``transformers`` builds from a folder's files alone.

The server knows from a folder's ``config.json`` which of these functions loads it, and its inputs and outputs. Weights
are safetensors files. No code of a folder runs, and the network is not used.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from tenure import Error

__all__ = ["images", "masked_tokens", "sentences", "tokens"]

#: The first release that loads models without a second copy of their weights.
_RELEASE = 4, 56

_DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}

#: The modes of pooling by their keys in older releases, in the order in which their vectors are joined.
_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


def tokens(folder: str) -> nn.Module:
    """Loads a model that takes ``input_ids``."""
    return _of_class(folder, "input_ids")


def masked_tokens(folder: str) -> nn.Module:
    """Loads a model that takes ``input_ids`` and ``attention_mask``."""
    return _of_class(folder, "input_ids", "attention_mask")


def images(folder: str) -> nn.Module:
    """Loads a model that takes ``pixel_values``."""
    return _of_class(folder, "pixel_values")


def sentences(folder: str) -> nn.Module:
    """Loads a sentence-transformers model, which takes ``input_ids`` and ``attention_mask``."""
    transformers = _transformers()
    first, *others = _json(folder, "modules.json")
    at = str(Path(folder, first["path"]))
    config = transformers.AutoConfig.from_pretrained(at, local_files_only=True, trust_remote_code=False)
    encoder = _load(transformers.AutoModel, config, at)
    after = [_sentence_module(folder, each) for each in others]
    dtype = _stored_dtype(at)
    return _Sentences(_Pretrained(encoder, ("input_ids", "attention_mask"), dtype), nn.Sequential(*after).to(dtype))


class _Pretrained(nn.Module):
    """A ``transformers`` model with positional inputs. Floating-point inputs and outputs have the weights' datatype."""

    def __init__(self, model: Any, inputs: Sequence[str], dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self._inputs, self._dtype = model, inputs, dtype
        _check_inputs(model, inputs)
        # Without a padding token, classifiers with a decoder cannot find the last token of each text in a batch.
        is_classifier = type(model).__name__.endswith("ForSequenceClassification")
        self._takes_one_row = is_classifier and getattr(model.config, "pad_token_id", None) is None

    def forward(self, *inputs: Tensor) -> dict[str, Tensor]:
        rows = inputs[0].shape[0]
        if not self._takes_one_row or rows < 2:
            return self._answer(inputs)
        answers = [self._answer([each[row : row + 1] for each in inputs]) for row in range(rows)]
        return {name: torch.cat([answer[name] for answer in answers]) for name in answers[0]}

    def _answer(self, inputs: Sequence[Tensor]) -> dict[str, Tensor]:
        given = {name: self._converted(each) for name, each in zip(self._inputs, inputs, strict=True)}
        answer = self.model(**given)
        return {name: self._converted(each) for name, each in answer.items() if isinstance(each, Tensor)}

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._dtype) if tensor.is_floating_point() else tensor


class _Sentences(nn.Module):
    """A sentence-transformers model: makes one vector from a text's tokens."""

    def __init__(self, encoder: nn.Module, after: nn.Sequential) -> None:
        super().__init__()
        self.encoder, self.pooling, self.after = encoder, after[0], after[1:]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(input_ids, attention_mask)["last_hidden_state"]
        return {"sentence_embedding": self.after(self.pooling(hidden, attention_mask))}


class _Pooling(nn.Module):
    """Makes a text's vector from those of its tokens, as sentence-transformers does."""

    def __init__(self, modes: Sequence[str]) -> None:
        super().__init__()
        self._modes = modes

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        return torch.cat([_pooled(mode, hidden, mask) for mode in self._modes], -1)


class _Dense(nn.Module):
    def __init__(self, linear: nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.linear, self.activation = linear, activation

    def forward(self, vectors: Tensor) -> Tensor:
        return self.activation(self.linear(vectors))


class _Normalize(nn.Module):
    def forward(self, vectors: Tensor) -> Tensor:
        return nn.functional.normalize(vectors, p=2, dim=1)


def _pooled(mode: str, hidden: Tensor, mask: Tensor) -> Tensor:
    length = mask.shape[1]
    positions = torch.arange(length, device=mask.device)
    # Half-precision numbers are added in single precision.
    summed = torch.promote_types(hidden.dtype, torch.float32)
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    match mode:
        case "cls":
            return hidden[torch.arange(len(mask), device=mask.device), mask.to(torch.int).argmax(1)]
        case "lasttoken":
            last = torch.where(mask != 0, positions, 0).argmax(1)
            return hidden[torch.arange(len(mask), device=mask.device), last]
        case "max":
            return hidden.masked_fill(weights == 0, float("-inf")).max(1).values
        case "mean" | "mean_sqrt_len_tokens":
            count = weights.sum(1, dtype=summed).clamp(min=1e-9)
            total = (hidden * weights).sum(1, dtype=summed)
            return (total / (count if mode == "mean" else count.sqrt())).to(hidden.dtype)
        case "weightedmean":
            first = mask.to(torch.int).argmax(1, keepdim=True)
            weights = mask.unsqueeze(-1) * (positions + 1 - first).unsqueeze(-1).to(summed)
            return ((hidden * weights).sum(1) / weights.sum(1).clamp(min=1e-9)).to(hidden.dtype)
        case other:
            raise Error(f"there is no pooling {other!r}: there are {', '.join(_MODES.values())}")


def _sentence_module(folder: str, module: dict[str, Any]) -> nn.Module:
    """Returns a module after the first one, which computes the tokens' vectors."""
    kind, path = module["type"].rsplit(".", 1)[-1], module["path"]
    match kind:
        case "Pooling":
            return _Pooling(_modes(_json(folder, f"{path}/config.json")))
        case "Normalize":
            return _Normalize()
        case "Dense":
            return _dense(folder, path)
        case _:
            raise Error(f"{module['type']} of modules.json is unknown: Pooling, Dense and Normalize are known")


def _modes(config: dict[str, Any]) -> list[str]:
    if mode := config.get("pooling_mode"):
        return [mode] if isinstance(mode, str) else mode
    return [mode for key, mode in _MODES.items() if config.get(key)] or ["mean"]


def _dense(folder: str, path: str) -> nn.Module:
    from safetensors.torch import load_file

    config = _json(folder, f"{path}/config.json")
    names = [config.get(f"module_{side}_name") or "sentence_embedding" for side in ("input", "output")]
    if config.get("use_residual") or names != ["sentence_embedding", "sentence_embedding"]:
        raise Error(
            f"{path}/config.json: a Dense with use_residual, module_input_name or module_output_name cannot be computed"
        )
    name = config.get("activation_function", "torch.nn.modules.activation.Tanh")
    activation = getattr(nn, name.rsplit(".", 1)[-1], None) if name.startswith("torch.nn.modules.") else None
    if not (inspect.isclass(activation) and issubclass(activation, nn.Module)):
        raise Error(f"{path}/config.json: activation_function is {name!r}: only classes of torch.nn can be computed")
    linear = nn.Linear(config["in_features"], config["out_features"], config.get("bias", True))
    weights = load_file(Path(folder, path, "model.safetensors"))
    linear.load_state_dict({key.removeprefix("linear."): weight for key, weight in weights.items()})
    return _Dense(linear, activation())


def _of_class(folder: str, *inputs: str) -> nn.Module:
    """Loads a model of the class that ``config.json`` names."""
    transformers = _transformers()
    (name,) = _json(folder, "config.json")["architectures"][:1]
    found: Any = getattr(transformers, name, None)
    is_model: bool = inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)
    if not is_model:
        raise Error(
            f"transformers {transformers.__version__} has no class {name}: install a release that has it, or add a"
            ' config.toml with python = "model.py:load"'
        )
    config = found.config_class.from_pretrained(folder, local_files_only=True)
    return _Pretrained(_load(found, config, folder), inputs, _stored_dtype(folder))


def _load(loader: Any, config: Any, folder: str) -> Any:
    """Loads a model. Raises an error if a weight that its answers need is missing."""
    if "/" in str(getattr(config, "_attn_implementation", None)):
        raise Error(f"config.json: attn_implementation is {config._attn_implementation!r}, which is code of a hub's")
    for each in config, getattr(config, "text_config", None) or config:
        each.use_cache, each.return_dict = False, True
    model, loaded = loader.from_pretrained(
        folder,
        config=config,
        dtype=_stored_dtype(folder),
        local_files_only=True,
        trust_remote_code=False,
        use_safetensors=True,
        output_loading_info=True,
    )
    # An encoder's answer is the tokens' vectors, so the weights of a pooler after them are not needed.
    is_encoder = type(model).__name__.endswith("Model")
    missing = sorted(name for name in loaded["missing_keys"] if not (is_encoder and name.startswith("pooler.")))
    if missing:
        raise Error(
            f"the weights have no {missing[0]}, one of {len(missing)} that {type(model).__name__} needs: has"
            " config.json the architectures of these weights?"
        )
    return model


def _check_inputs(model: Any, inputs: Sequence[str]) -> None:
    """Raises an error if a model takes other inputs."""
    parameters = inspect.signature(model.forward).parameters
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    taken = {name: each for name, each in parameters.items() if each.kind in kinds}
    needed = [name for name, each in taken.items() if each.default is inspect.Parameter.empty and name not in inputs]
    if needed or not set(inputs) <= set(taken):
        raise Error(
            f"{type(model).__name__} takes {', '.join(needed or taken)}, and would be given {' and '.join(inputs)}:"
            ' add a config.toml with python = "model.py:load"'
        )


def _stored_dtype(folder: str) -> torch.dtype:
    """Returns the type of the first floating-point tensor by name: the server expects answers of this type."""
    from safetensors import safe_open

    name = "model.safetensors"
    if not Path(folder, name).exists():
        name = min(_json(folder, f"{name}.index.json")["weight_map"].values())
    with safe_open(Path(folder, name), "pt") as file:
        stored = (file.get_slice(key).get_dtype() for key in sorted(file.keys()))
        return next(_DTYPES[dtype] for dtype in stored if dtype in _DTYPES)


def _json(folder: str, name: str) -> Any:
    return json.loads(Path(folder, name).read_text())


def _transformers() -> ModuleType:
    """Imports the package, which need not be installed."""
    install = f"{sys.executable} -m pip install 'transformers>={'.'.join(map(str, _RELEASE))}'"
    try:
        import transformers
    except ModuleNotFoundError as error:
        if error.name != "transformers":
            raise
        raise Error(f"a Hugging Face folder is loaded by transformers, which is not installed: {install}") from error
    if tuple(int(part) for part in transformers.__version__.split(".")[:2]) < _RELEASE:
        raise Error(f"transformers {transformers.__version__} is too old: {install}")
    return transformers

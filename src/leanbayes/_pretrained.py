"""Folders as transformers writes them, with a converted model's weights in our own file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes._save import load, save
from leanbayes._saved_file import PathLike
from leanbayes.convert.pretrained import writes_pretrained
from leanbayes.nn._base import Converted

WEIGHTS = "leanbayes.safetensors"
# transformers looks for its weights here, and its error names the file that is not there: the name is the advice.
_INDEX = "model.safetensors.index.json"
_ADVICE = f"{WEIGHTS}, which leanbayes.huggingface.from_pretrained reads"
_PLAIN = ("model.safetensors", "pytorch_model.bin", "pytorch_model.bin.index.json")


@writes_pretrained
def save_pretrained(
    model: nn.Module, folder: PathLike, is_main_process: bool = True, push_to_hub: bool = False, **options: Any
) -> None:
    """Write a converted model of transformers to a folder that `from_pretrained` reads.

    This is what ``model.save_pretrained(folder)`` of a converted model does. The folder gets the configuration as usual
    and, in ``leanbayes.safetensors``, every tensor and the method and prior of every layer, as `lb.save` writes them.
    The plain ``from_pretrained`` would take a converted model's weights for missing ones and draw them anew; it refuses
    the folder instead, with an error that names ours. For a PEFT model, only the adapter is written: its configuration,
    what is trained and what was converted.

    Args:
        model: A converted model with a configuration.
        folder: Where to write; created if it does not exist.
        is_main_process: False writes nothing, for the other processes of a run on several devices.
        push_to_hub: Not offered; ``model.push_to_hub(name)`` saves and uploads.
        options: Options of transformers that only change how plain weights are written; ignored.

    Raises:
        ValueError: If the folder holds the weights of a plain model, or the model has no configuration.
    """
    plain: Any = model.plain_view() if isinstance(model, Converted) else model
    config = getattr(plain, "config", None)
    if config is None:
        raise ValueError(f"a {type(plain).__name__} has no transformers configuration; use lb.save(model, path)")
    if push_to_hub:
        raise ValueError("push_to_hub=True is not supported when saving; model.push_to_hub(name) saves and uploads")
    if not is_main_process:
        return
    target = Path(os.fspath(folder))
    target.mkdir(parents=True, exist_ok=True)
    other = next((name for name in _PLAIN if (target / name).exists()), None)
    if other is not None:
        raise ValueError(
            f"{folder} holds {other} of a plain model, which would be loaded instead; choose another folder"
        )
    if _has_adapter(plain):
        plain.peft_config[plain.active_adapter].save_pretrained(folder)
        save(model, target / WEIGHTS, frozen=False)
        return
    config.architectures = [type(plain).__name__]
    config.save_pretrained(folder)
    if plain.can_generate():
        plain.generation_config.save_pretrained(folder)
    save(model, target / WEIGHTS)
    (target / _INDEX).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": {"": _ADVICE}}, indent=2))


def from_pretrained(
    model_class: Any, folder: PathLike, *, dtype: torch.dtype | str | None = None, **options: Any
) -> nn.Module:
    """Read a converted model that `save_pretrained` wrote, every converted weight included.

    Builds the plain model from the configuration, converts it layer by layer as the saved one was, and fills in the
    values. Like transformers' own function, it returns a model in eval mode.

    Args:
        model_class: The class that would load the plain model: ``AutoModelForCausalLM``, ``BertForMaskedLM``, ... For
            an adapter of PEFT, the base model itself, which then gets the adapter.
        folder: A folder, or a repository on the Hub.
        dtype: Dtype of the model; None and "auto" keep that of the file.
        options: For the configuration and the download: ``revision``, ``token``, ``cache_dir``, ...

    Raises:
        ValueError: If the folder holds a plain model, or the values do not fit the configuration.

    Example:
        >>> import tempfile, leanbayes as lb
        >>> from leanbayes.huggingface import from_pretrained
        >>> from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM
        >>> config = BertConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> model = lb.bayesianize(BertForMaskedLM(config), lb.Rank1())
        >>> folder = tempfile.mkdtemp()
        >>> model.save_pretrained(folder)
        >>> again = from_pretrained(AutoModelForMaskedLM, folder)
        >>> bool(lb.kl(again) == lb.kl(model))
        True
    """
    from transformers import AutoConfig, GenerationConfig
    from transformers.utils.hub import cached_file

    name = type(model_class).__name__ if isinstance(model_class, nn.Module) else model_class.__name__
    path = cached_file(folder, WEIGHTS, _raise_exceptions_for_missing_entries=False, **options)
    if path is None:
        raise ValueError(
            f"{folder} has no {WEIGHTS}, so it does not hold a converted model; load it with "
            f"{name}.from_pretrained and convert it with lb.bayesianize"
        )
    if isinstance(model_class, nn.Module):
        return _in_dtype(load(path, _with_adapter(model_class, folder)), dtype).eval()
    config = AutoConfig.from_pretrained(folder, **options)
    build = getattr(model_class, "from_config", None) or model_class._from_config
    plain = build(config)
    if plain.can_generate():
        plain.generation_config = GenerationConfig.from_pretrained(folder, **options)
    return _in_dtype(load(path, plain), dtype).eval()


def _in_dtype(model: nn.Module, dtype: torch.dtype | str | None) -> nn.Module:
    """A model in the dtype that was asked for, by itself or by name."""
    if dtype is None or dtype == "auto":
        return model
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype):
        raise ValueError(f"dtype is one of torch's such as torch.bfloat16, its name, or 'auto', not {dtype!r}")
    return model.to(found)


def _has_adapter(model: Any) -> bool:
    """Whether a model is PEFT's, which has the plain one inside."""
    return callable(getattr(model, "get_base_model", None)) and bool(getattr(model, "peft_config", None))


def _with_adapter(base: nn.Module, folder: PathLike) -> nn.Module:
    """A base model with a fresh adapter of a folder's configuration."""
    try:
        from peft import PeftConfig, get_peft_model  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("adapters need PEFT: pip install 'leanbayes[peft]'") from None
    if not os.path.exists(os.path.join(folder, "adapter_config.json")):
        raise ValueError(f"{folder} holds a whole model, not an adapter; pass the model's class")
    return get_peft_model(base, PeftConfig.from_pretrained(folder))  # pyright: ignore[reportArgumentType]

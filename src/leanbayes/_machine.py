"""What a result says about the machine that it was measured on."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import torch

from leanbayes._version import __version__


def versions() -> dict[str, str]:
    """Versions of what decides the figures."""
    return {"leanbayes": __version__, "torch": torch.__version__, "python": platform.python_version()}


def versions_text(versions: Mapping[str, str]) -> str:
    """Versions as tables and notes list them."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def device_name(device: str) -> str:
    """The name of a GPU, or the number of threads of the CPU."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'' if threads == 1 else 's'}"

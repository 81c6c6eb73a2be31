"""Packages that only some readers need."""

from __future__ import annotations

import importlib
from typing import Any

_DISTRIBUTIONS = {"sklearn": "scikit-learn", "PIL": "pillow"}


def need(module: str, purpose: str) -> Any:
    """Import a module, or say in one sentence what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.split(".")[0]
        if error.name is None or error.name.split(".")[0] != top:
            raise
        distribution = _DISTRIBUTIONS.get(top, top)
        raise ModuleNotFoundError(
            f"reading {purpose} needs {distribution}; install it with: pip install 'leanbayes[data]'", name=error.name
        ) from None

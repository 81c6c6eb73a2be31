"""Methods by name."""

from __future__ import annotations

import difflib

from leanbayes.compare.presets import PRESETS, Preset
from leanbayes.posteriors import DropConnect

_NAMED = {**PRESETS, "drop-connect": Preset("drop-connect", "DropConnect", DropConnect())}


def named_method(name: str) -> Preset:
    """The method of a name, as `leanbayes compare` trains it; "mean_field", "MeanField" and "mean-field" are one.

    Example:
        >>> named_method("batch_ensemble").title
        'BatchEnsemble (4)'
    """
    known = {_key(known): preset for known, preset in _NAMED.items()}
    if _key(name) in known:
        return known[_key(name)]
    near = difflib.get_close_matches(_key(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {known[near[0]].name!r}? The" if near else "the"
    raise ValueError(f"there is no method {name!r}; {hint} methods are {', '.join(_NAMED)}")


def _key(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter.isalnum())

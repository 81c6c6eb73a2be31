"""Datasets: what a run works on, real or generated, each read once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from leanbayes.data import Dataset, generate, load
from leanbayes.data._fingerprint import of_dataset

OWN_FOLDER = "."


class Datasets:
    """The data sets of a run: real ones, or generated ones in a smoke run that was given no data.

    Args:
        folder: Of unpacked data sets; None for the usual place, see `leanbayes.data.load`.
        download: Whether to fetch missing public data sets.
        smoke: Whether generated ones do where there is no folder and nothing is fetched.

    Attributes:
        generated: Whether they are generated ones.
        note: What the result must say then.
        fingerprints: Of the real data sets that were read so far.

    Raises:
        FileNotFoundError: If there is no such folder, and none is to be filled.
    """

    def __init__(self, folder: Path | None, download: bool, smoke: bool) -> None:
        # Recipes that have all their work done, or need no data, would not notice.
        if folder is not None and not download and not folder.expanduser().is_dir():
            raise FileNotFoundError(
                f"there is no data folder {folder}; pass the folder of unpacked data sets with --data"
            )
        self.generated = smoke and folder is None and not download
        self.note = "generated data"
        self.fingerprints: dict[str, str] = {}
        self._folder = folder
        self._fetch = {"download": True} if download else {}
        self._loaded: dict[str, Dataset] = {}

    def __getstate__(self) -> dict[str, Any]:
        """What another process gets: it loads its data itself."""
        return vars(self) | {"_loaded": {}}

    @property
    def kind(self) -> str:
        """What work that was done on them notes: "generated" or "real"."""
        return "generated" if self.generated else "real"

    def load(self, name: str, *, rows: Any = None, **options: Any) -> Dataset:
        """See `Run.load`."""
        key = json.dumps([name, rows, options], sort_keys=True)
        if key not in self._loaded:
            if self.generated:
                found = generate.dataset(name, rows=rows, **options)
            else:
                # Where it lies is no part of the name: work that was done on it may be used on another machine.
                source = str(self._folder) if name == OWN_FOLDER else name
                found = load(source, self._folder, **options, **self._fetch)
                self.fingerprints[key] = of_dataset(found)
            self._loaded[key] = found
        return self._loaded[key]

    def fingerprint(self, key: str) -> str:
        """Of a data set that was read under this key; reads it where this run has not yet."""
        if key not in self.fingerprints:
            name, rows, options = json.loads(key)
            self.load(name, rows=rows, **options)
        return self.fingerprints[key]

"""Run: what a recipe works through, so that its work can be done in legs and shared with other recipes."""

from __future__ import annotations

import copy
import dataclasses
import datetime
import fnmatch
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from filelock import BaseFileLock
from torch import nn

from leanbayes._machine import device_name, versions
from leanbayes._sampling import SeededRandom
from leanbayes.compare.checkpoint import as_json
from leanbayes.data import Dataset
from leanbayes.data._files import NotComplete
from leanbayes.data._fingerprint import of_examples
from leanbayes.objectives.likelihoods import Likelihood
from leanbayes.reproduce.datasets import Datasets
from leanbayes.reproduce.leg import Leg, LegOver, PartDone
from leanbayes.reproduce.pieces import Pieces
from leanbayes.reproduce.trainings import Stop, check_same, published
from leanbayes.reproduce.workers import ENDS_ALL, in_processes
from leanbayes.training import EpochEnd, TrainConfig, fit
from leanbayes.training.data import Augment
from leanbayes.training.errors import FolderInUse
from leanbayes.training.files import claim
from leanbayes.training.seeds import derive


class Run:
    """One run of a recipe: its settings, and work that is done once.

    A run may take several legs. A leg ends between two pieces of work, or between two epochs of a training, once its
    time is over; every leg does at least one piece or epoch.

    Args:
        id: Of the recipe.
        preset: "smoke", "short" or "paper".
        settings: Those of the preset, with what was overridden.
        seeds: One network or repetition each.
        folder: Where work is kept; runs of the same preset share it, whatever their id.
        device: "cpu" or "cuda".
        data: Folder of unpacked data sets; None for the usual place, see `leanbayes.data.load`.
        limit_s: Seconds that this leg may take, None for no limit; or a leg that several runs share.
        workers: Processes for pieces of work that are independent, see `units`.
        progress: Whether to show progress bars; None shows them on a terminal.
        download: Whether to fetch missing public data sets; a smoke run then uses real data, too.
        only: Patterns of the names of the pieces of work to do, all where there is none; see `units`.
        results: Folder of the result files, where finished pieces lie, too, until the result is there; None keeps them
            in `folder` alone.

    Attributes:
        leg: The time that is left.
        pieces: The finished pieces of work, and which of them this run has used.
        notes: What the result must say about this run, such as that its data were generated.

    Raises:
        FileNotFoundError: If there is no folder `data`, and none is to be filled.
    """

    def __init__(
        self,
        id: str,
        preset: str,
        settings: Mapping[str, Any],
        seeds: Sequence[int],
        folder: Path,
        *,
        device: str = "cpu",
        data: Path | None = None,
        limit_s: float | Leg | None = None,
        workers: int = 1,
        progress: bool | None = None,
        download: bool = False,
        only: Sequence[str] = (),
        results: Path | None = None,
    ) -> None:
        self.id = id
        self.preset = preset
        self.settings = dict(settings)
        self.seeds = tuple(seeds)
        self.folder = folder
        self.device = device
        self.data = data
        self.workers = workers
        self.progress = progress
        self.only = tuple(only)
        self.leg = limit_s if isinstance(limit_s, Leg) else Leg(limit_s)
        # One for this run and its parts with other settings.
        self.pieces = Pieces(folder, results, preset)
        self.notes: list[str] = []
        self._datasets = Datasets(data, download, smoke=preset == "smoke")
        # Names of units; sets, so that parts of this run with other settings share them.
        self._computed: set[str] = set()
        self._reused: set[str] = set()
        self._matched: set[str] = set()
        self._settings_of: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = _all_settings

    def changed(self, **settings: Any) -> Run:
        """This run with other settings, for a part of its work that is done otherwise; notes and time are shared."""
        part = copy.copy(self)
        part.settings = self.settings | settings
        return part

    def as_recipe(self, id: str) -> Run:
        """This run with the pieces of work of another recipe, so that what both need is done once."""
        part = copy.copy(self)
        part.id = id
        return part

    def decided_by(self, settings_of: Callable[[str, Mapping[str, Any]], Mapping[str, Any]]) -> Run:
        """This run with pieces of work that some of the settings decide, so that changes to the others keep them.

        Args:
            settings_of: ``settings_of(name, settings)`` gives those that decide the piece of that name; a function of a
                module.
        """
        part = copy.copy(self)
        part._settings_of = settings_of
        return part

    def load(self, name: str, *, rows: Any = None, **options: Any) -> Dataset:
        """A data set by name, read once: the real one, or a generated one in a smoke run that was given no data.

        Args:
            name: As in `leanbayes.data.load`; `OWN_FOLDER` for the data folder itself, a tree of image folders.
            rows: Size of the generated set, as its writer takes it.
            **options: Of the reader, such as ``valid`` or ``normalise``.

        Returns:
            The data set.
        """
        if self.generated:
            self.note(self._datasets.note)
        return self._datasets.load(name, rows=rows, **options)

    @property
    def generated(self) -> bool:
        """Whether the data of this run are generated ones."""
        return self._datasets.generated

    def generate_without(self, name: str, note: str, **options: Any) -> None:
        """Go over to generated data where there is no copy of a data set; call it before any work is done.

        Args:
            name: Of the data set; one of which a part is there is an error.
            note: What the result must say then; begins with "generated".
            **options: As `load` will take them.
        """
        if not self.generated:
            try:
                self.load(name, **options)
            except NotComplete:
                raise
            except FileNotFoundError:
                self._datasets.generated, self._datasets.note = True, note

    @property
    def only_reused(self) -> bool:
        """Whether every unit so far was there already, so that nothing was computed here and now."""
        return bool(self._reused) and not self._computed

    def note(self, text: str) -> None:
        """Something that the result must say, once."""
        if text not in self.notes:
            self.notes.append(text)

    def unit(self, name: str, work: Callable[[], Any]) -> Any:
        """The result of one piece of work, from the folder where it was done already with the same settings and data.

        Args:
            name: Of the piece within the recipe, such as "seed0"; must say what else than the settings decides it.
            work: Does it; returns plain values.

        Returns:
            The result as JSON gives it back: lists for tuples, None for numbers that are not finite.
        """
        done = self._done(name)
        if done is not None:
            self._reused.add(name)
            self.pieces.use(self.id, name, done)
            for text in done["notes"]:
                self.note(text)
            return done["value"]
        if not self.wants(name):
            raise PartDone(self.id, [name])
        self.check_time()
        value, seconds = self._timed(name, work)
        made = {
            "device": device_name(self.device),
            "versions": versions(),
            "date": datetime.date.today().isoformat(),
            "seconds": round(seconds, 1),
        }
        kept = {"about": self._about(), "fingerprints": self._datasets.fingerprints, "notes": self.notes, "made": made}
        self.pieces.keep(self.id, name, {**kept, "value": value})
        self.leg.worked = True
        self._computed.add(name)
        return value

    def _timed(self, name: str, work: Callable[[], Any]) -> tuple[Any, float]:
        """What a piece of work gives, and the seconds that all legs put into it."""
        before, began = self.pieces.spent(self.id, name, self._about()), time.monotonic()
        try:
            value = as_json(work())
        except LegOver:
            self.pieces.begin(self.id, name, self._about(), before + time.monotonic() - began)
            raise
        return value, before + time.monotonic() - began

    def wants(self, name: str) -> bool:
        """Whether a piece of work is among those that the run is to do."""
        return not self.only or any(fnmatch.fnmatchcase(name, pattern) for pattern in self.only)

    def _done(self, name: str) -> dict[str, Any] | None:
        """What is kept of a piece of work that was done with the same settings on the same data."""
        return self.pieces.find(self.id, name, partial(self._fits, name))

    def _known_done(self, name: str) -> bool:
        """Whether a piece that the run is not to do is done; its data may be on other machines alone."""
        try:
            return self._done(name) is not None
        except NotComplete:
            raise
        except FileNotFoundError:
            return False

    def _fits(self, name: str, piece: Mapping[str, Any]) -> bool:
        theirs, own = piece["about"], self._about()
        if theirs["data"] != own["data"]:
            return False
        if self._settings_of(name, theirs["settings"]) != self._settings_of(name, own["settings"]):
            return False
        return all(self._datasets.fingerprint(key) == value for key, value in piece["fingerprints"].items())

    def _about(self) -> dict[str, Any]:
        return {"settings": as_json(self.settings), "data": self._datasets.kind}

    def units(
        self, work: Callable[..., Any], pieces: Mapping[str, tuple[Any, ...]], *, alone: Collection[str] = ()
    ) -> dict[str, Any]:
        """The results of many pieces of work, each a `unit` of its own; done by several processes where there are.

        A piece that fails is told, and the others go on: they may be hours of work, and nobody may be there. Where data
        or packages are missing, or nothing can be written, all end.

        Args:
            work: ``work(run, *arguments)`` does one, and returns plain values; a function of a module.
            pieces: The arguments by the name of the piece.
            alone: Names of pieces that no other may run beside, such as timings; they come after the others.

        Returns:
            The results by name.

        Raises:
            PartDone: If some of them are open, and those that the run is to do are done.
            Exception: That of the first piece that failed, once the others are done.
        """
        open_ones = [name for name in pieces if not self.wants(name) and not self._known_done(name)]
        self._matched.update(name for name in pieces if self.wants(name))
        if open_ones:
            wanted = {name: arguments for name, arguments in pieces.items() if name not in open_ones}
            # Work in several stages has pieces that patterns for another stage do not match.
            if not self._matched:
                raise ValueError(f"no piece of work matches {', '.join(self.only)}; there are {', '.join(pieces)}")
            self.units(work, wanted, alone=alone)
            raise PartDone(self.id, open_ones)
        if self.workers > 1:
            todo = [
                _Piece(self, name, work, arguments)
                for name, arguments in pieces.items()
                if name not in alone and not self._done(name)
            ]
            self._computed.update(piece.name for piece in todo)
            if errors := in_processes(_do_piece, todo, self.workers, self._before_piece):
                raise errors[0]
        found: dict[str, Any] = {}
        errors: list[BaseException] = []
        for name in sorted(pieces, key=lambda name: name in alone):
            try:
                with _naming(name):
                    found[name] = self.unit(name, lambda a=pieces[name]: work(self, *a))
            except ENDS_ALL:
                raise
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return {name: found[name] for name in pieces}

    def _before_piece(self) -> None:
        self.check_time()
        self.leg.worked = True

    def each_seed(self, work: Callable[..., Any]) -> list[Any]:
        """The results of a piece of work for every seed, see `units`.

        Args:
            work: ``work(run, seed)`` does it.
        """
        return list(self.units(work, {f"seed{seed}": (seed,) for seed in self.seeds}).values())

    def each_seed_of(self, work: Callable[..., Any], names: Iterable[str]) -> dict[str, list[Any]]:
        """The results of a piece of work for every name, such as that of a network, and every seed, see `units`.

        Args:
            work: ``work(run, name, seed)`` does it.
            names: What to do it for.

        Returns:
            One list over the seeds for each name.
        """
        names = list(names)
        pieces = {f"{name}-seed{seed}": (name, seed) for name in names for seed in self.seeds}
        done = self.units(work, pieces)
        return {name: [done[f"{name}-seed{seed}"] for seed in self.seeds] for name in names}

    def trained(
        self,
        key: str,
        seed: int,
        build: Callable[[], nn.Module],
        data: Any,
        config: TrainConfig,
        *,
        likelihood: Likelihood | None = None,
        augment: Augment | None = None,
        callbacks: Iterable[Callable[[EpochEnd], Any]] = (),
    ) -> tuple[nn.Module, list[dict[str, Any]]]:
        """A trained model: trains it, goes on with a training that a leg cut short, or loads one that is done.

        What a callback puts into ``event.record`` is kept with the checkpoint, so that it is there in a later leg;
        other things that it keeps are not.

        Args:
            key: Names the training; recipes that use the same key share it, and must ask for the same.
            seed: Of the model's first weights and of the training.
            build: Makes the model; called with torch's generators seeded.
            data: As `fit` takes it.
            config: How to train; its device and seed are set here.
            likelihood: As in `fit`.
            augment: As in `fit`.
            callbacks: As in `fit`.

        Returns:
            The model on the device, and one record per epoch.
        """
        config = dataclasses.replace(config, device=self.device, seed=seed, **published(config))
        folder = self.folder / "trainings" / f"{key}-seed{seed}"
        with SeededRandom(derive(seed, "build")):
            model = build()
        check_same(folder, config.to_dict() | {"data": self._datasets.kind}, model, of_examples(data))
        lock = self._claim(folder)
        stop = Stop(self.leg, self.id, config.checkpoint_every, augment)
        try:
            history = fit(
                model,
                data,
                config,
                out=folder,
                resume=True,
                callbacks=(*callbacks, stop.after_epoch),
                likelihood=likelihood,
                augment=stop.augment,
                progress=self.progress,
            )
        finally:
            lock.release()
        return model, history.records

    def _claim(self, folder: Path) -> BaseFileLock:
        """The folder of a training for this run alone; waits while another run trains there."""
        told = self.progress is False
        while True:
            try:
                return claim(folder, wait_s=1)
            except FolderInUse:
                self.check_time()
                if not told:
                    print(f"another run trains in {folder}, waiting for it", file=sys.stderr)
                    told = True

    def check_time(self) -> None:
        """End the leg where its time is over; for loops that keep what they did by themselves."""
        if self.leg.is_over():
            raise LegOver(f"the time of this leg ended in {self.id}")


@dataclass(frozen=True)
class _Piece:
    """One piece of `Run.units`, as another process gets it."""

    run: Run
    name: str
    work: Callable[..., Any]
    arguments: tuple[Any, ...]


def _do_piece(piece: _Piece) -> None:
    piece.run.leg.worked = False  # this process does something before the leg ends, as any does
    piece.run.progress = False  # bars of several processes would write over each other
    with _naming(piece.name):
        piece.run.unit(piece.name, lambda: piece.work(piece.run, *piece.arguments))


@contextmanager
def _naming(piece: str) -> Iterator[None]:
    """Says which piece of work an error is of; others go on after it."""
    try:
        yield
    except ENDS_ALL:
        raise
    except Exception as error:
        print(f"{piece} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise


def _all_settings(name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    return settings

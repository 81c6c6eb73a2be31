"""What a reader gives: examples in three parts, and what a network must know about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from leanbayes.data._batches import Batches
from leanbayes.data._normalise import Normalisation
from leanbayes.data._rows import Rows

Task = Literal["classification", "binary", "regression"]
Inputs = Literal["image", "table", "text", "series"]
PartName = Literal["train", "valid", "test"]


@dataclass(frozen=True)
class Part:
    """Examples and their targets; ``part[i]`` is the pair for one example, so a DataLoader takes it.

    Attributes:
        x: Inputs as they were read, ``[N, ...]``: bytes for images, float64 for tables, ids for text; or `Rows`.
        y: Class numbers (int64), 0 and 1 (int64), or real targets in their own units (float64), ``[N]``.
        groups: A number for the group of each row (int64), ``[N]``; None where rows stand alone.
    """

    x: Tensor | Rows
    y: Tensor
    groups: Tensor | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"there are {len(self.x)} inputs but {len(self.y)} targets; each input needs one target")

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: Any) -> tuple[Tensor, Tensor]:
        return self.x[index], self.y[index]

    def take(self, rows: Any) -> Part:
        """The examples of these rows, an array or tensor of whole numbers."""
        index = torch.as_tensor(rows)
        x = self.x[index] if isinstance(self.x, Tensor) else _subset(self.x, index)
        return Part(x, self.y[index], None if self.groups is None else self.groups[index])

    def spaced(self, limit: int) -> Part:
        """At most `limit` examples, evenly spaced, so that a sorted part keeps all kinds."""
        if len(self) <= limit:
            return self
        return self.take(torch.linspace(0, len(self) - 1, limit).round().long())

    def tensor(self) -> Tensor:
        """The inputs in memory, read now if they were not yet."""
        return self.x if isinstance(self.x, Tensor) else self.x[torch.arange(len(self.x))]


def _subset(x: Rows, index: Tensor) -> Rows:
    subset: Callable[[Tensor], Rows] | None = getattr(x, "subset", None)
    if subset is None:
        raise TypeError(f"{type(x).__name__} has no method `subset`, so it cannot be split")
    return subset(index)


ColumnKind = Literal["number", "category", "boolean", "date"]


@dataclass(frozen=True)
class Column:
    """One column of a table as the network sees it; everything learnt about it comes from training rows.

    Attributes:
        name: Its name in the file.
        categories: The values that get one input each, in ascending order; empty for other kinds.
        kind: What it holds; by default a category if there are categories, otherwise a number.
        format: How its texts are written, such as "1.234,5" or "%d.%m.%Y"; empty for plain text.
        others: Texts among numbers that stand for a missing value.
        indicator: Whether the last of its inputs is 1 where the value is missing.
        parts: The inputs that a date becomes: days since `origin`, and sines and cosines of its cycles.
        origin: The first date of training, in seconds since 1970.
        unit: What stands beside its numbers, such as "kg"; empty for none.
        limits: The smallest and the largest number of training; None where they are not known.
        extras: What besides plain numbers is read as numbers, such as "multiples" (1.2M).
    """

    name: str
    categories: tuple[str, ...] = ()
    kind: ColumnKind | None = None
    format: str = ""
    others: tuple[str, ...] = ()
    indicator: bool = False
    parts: tuple[str, ...] = ()
    origin: float = 0.0
    unit: str = ""
    limits: tuple[float, float] | None = None
    extras: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind is None:
            object.__setattr__(self, "kind", "category" if self.categories else "number")

    @property
    def source(self) -> Literal["number", "boolean", "date"]:
        """What the texts of its `format` stand for; categories that have one are numbers."""
        return "number" if self.kind is None or self.kind == "category" else self.kind

    @property
    def width(self) -> int:
        """How many inputs it becomes."""
        return len(self.features)

    @property
    def features(self) -> tuple[str, ...]:
        """A name for each of its inputs.

        Example:
            >>> Column("size", indicator=True).features
            ('size', 'size is missing')
        """
        if self.kind == "category":
            names = tuple(f"{self.name}={value}" for value in self.categories)
        elif self.kind == "date":
            names = tuple(f"{self.name}: {part}" for part in self.parts)
        else:
            names = (self.name,)
        return (*names, f"{self.name} is missing") if self.indicator else names

    @property
    def scaled(self) -> tuple[bool, ...]:
        """Which of its inputs are scaled: numbers are; inputs from -1 to 1 anyway are not."""
        if self.kind == "category":
            plain = (False,) * len(self.categories)
        elif self.kind == "date":
            plain = tuple(part == "days" for part in self.parts)
        else:
            plain = (True,)
        return (*plain, False) if self.indicator else plain

    def to_json(self) -> dict[str, Any]:
        """Plain values, without those that have their default."""
        found: dict[str, Any] = {"name": self.name, "categories": list(self.categories), "kind": self.kind}
        found |= {"format": self.format, "others": list(self.others), "indicator": self.indicator}
        found |= {"parts": list(self.parts), "origin": self.origin, "unit": self.unit}
        found |= {"limits": None if self.limits is None else list(self.limits), "extras": list(self.extras)}
        return {name: value for name, value in found.items() if value or name in ("name", "categories")}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Column:
        """The column that :meth:`to_json` described."""
        fields: dict[str, Any] = {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}
        return cls(**fields)


@dataclass(frozen=True)
class Schema:
    """What a network must know to handle new examples of the same kind; plain JSON when saved.

    Attributes:
        task: What the targets are.
        inputs: What the inputs are.
        shape: Shape of one example as the network sees it: ``(C, H, W)``, ``(features,)``, ``(words,)``, ``(T, F)``.
        class_names: One per class; empty for a regression.
        normalisation: How inputs and targets are scaled.
        columns: Columns of a table, or the measurements of a time series.
        target: Name of the target's column, if there is one.
        vocabulary: Words of a text set, the most frequent first; word r has the id r + 4.
        missing: How missing values of a table were handled: "impute", "mean", "drop" or "error".
        file_options: How a table's file was read: separator, header, na.
        ids: Columns of a table that identify its rows: not inputs, but predictions keep them.
        target_unit: What stands beside the numbers of the target's column, such as "kg"; empty for none.
        group: Column of a table whose values name the groups that rows belong to; None for none.
    """

    task: Task
    inputs: Inputs
    shape: tuple[int, ...]
    class_names: tuple[str, ...] = ()
    normalisation: Normalisation = field(default_factory=Normalisation)
    columns: tuple[Column, ...] = ()
    target: str | None = None
    vocabulary: tuple[str, ...] = field(default=(), repr=False)
    missing: str = "error"
    file_options: dict[str, Any] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    target_unit: str = ""
    group: str | None = None

    def __post_init__(self) -> None:
        if self.task not in get_args(Task):
            raise ValueError(f"task is one of {', '.join(get_args(Task))}, not {self.task!r}")
        if self.inputs not in get_args(Inputs):
            raise ValueError(f"inputs is one of {', '.join(get_args(Inputs))}, not {self.inputs!r}")
        if (self.task == "regression") != (not self.class_names):
            raise ValueError(f"a task {self.task!r} does not go with {len(self.class_names)} class names")

    @property
    def classes(self) -> int | None:
        """Number of classes, 2 for a binary task, None for a regression."""
        return len(self.class_names) or None

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file; :meth:`from_json` reads them back exactly."""
        return {
            "task": self.task,
            "inputs": self.inputs,
            "shape": list(self.shape),
            "class_names": list(self.class_names),
            "normalisation": self.normalisation.to_json(),
            "columns": [column.to_json() for column in self.columns],
            "target": self.target,
            "vocabulary": list(self.vocabulary),
            "missing": self.missing,
            "file_options": self.file_options,
            "ids": list(self.ids),
            "target_unit": self.target_unit,
            "group": self.group,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Schema:
        """The schema that :meth:`to_json` described."""
        try:
            return cls(
                task=value["task"],
                inputs=value["inputs"],
                shape=tuple(value["shape"]),
                class_names=tuple(value["class_names"]),
                normalisation=Normalisation.from_json(value["normalisation"]),
                columns=tuple(map(Column.from_json, value["columns"])),
                target=value["target"],
                vocabulary=tuple(value["vocabulary"]),
                missing=value["missing"],
                file_options=dict(value["file_options"]),
                ids=tuple(value.get("ids", ())),
                target_unit=value.get("target_unit", ""),
                group=value.get("group"),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"the description of the data is damaged ({error!r}); load the data again") from None


@dataclass(frozen=True)
class Origin:
    """How `load` read a data set, so that the same parts can be read again; plain JSON when saved.

    Attributes:
        name: Of the set, None for a file or folder.
        options: Of the reader that decide what is read, also where they were left at their defaults.
        limit: The examples of each part at most, None for all.
        path: Of the file or folder, or the folder of named sets where one was given; None where that is not known.
    """

    name: str | None
    options: dict[str, Any] = field(default_factory=dict)
    limit: int | None = None
    path: str | None = field(default=None, compare=False)


@dataclass(frozen=True, repr=False)
class Dataset:
    """Examples for training, validation and test, as they were read, with their schema.

    Attributes:
        name: What was loaded.
        schema: Task, shapes, class names and normalisation.
        train: Examples to fit on.
        valid: Examples to choose settings with; may be empty.
        test: Examples for the final figures.
        notes: What the reader did that you should know about, one sentence each.
        origin: How it was read; None if `load` did not read it.
        class_weights: How much an example of each class counts in training; empty if all count the same.
    """

    name: str
    schema: Schema
    train: Part
    valid: Part
    test: Part
    notes: tuple[str, ...] = ()
    origin: Origin | None = None
    class_weights: tuple[float, ...] = ()

    @property
    def task(self) -> Task:
        """What the targets are: "classification", "binary" or "regression"."""
        return self.schema.task

    @property
    def inputs(self) -> Inputs:
        """What the inputs are: "image", "table", "text" or "series"."""
        return self.schema.inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one example as the network sees it."""
        return self.schema.shape

    @property
    def classes(self) -> int | None:
        """Number of classes, None for a regression."""
        return self.schema.classes

    @property
    def class_names(self) -> tuple[str, ...]:
        """One name per class."""
        return self.schema.class_names

    @property
    def normalisation(self) -> Normalisation:
        """How inputs and targets are scaled, fitted on the training part."""
        return self.schema.normalisation

    def part(self, name: PartName) -> Part:
        """One of the three parts by name."""
        if name not in get_args(PartName):
            raise ValueError(f"the parts are {', '.join(get_args(PartName))}, not {name!r}")
        return getattr(self, name)

    def limited(self, limit: int) -> Dataset:
        """At most `limit` examples of each part, evenly spaced; the scaling stays that of all training examples.

        Example:
            >>> from leanbayes.data import load
            >>> load("digits").limited(100)
            Dataset('digits': image (1, 8, 8), 10 classes, 100 train, 100 valid, 100 test)
        """
        if limit < 1:
            raise ValueError(f"limit must be at least 1, not {limit}")
        parts = {name: self.part(name).spaced(limit) for name in get_args(PartName)}
        left = ", ".join(f"{len(part)} of {len(self.part(name))} {name}" for name, part in parts.items())
        origin = None if self.origin is None else replace(self.origin, limit=limit)
        return replace(self, **parts, notes=(*self.notes, f"limited to {left} examples"), origin=origin)

    def balanced(self) -> Dataset:
        """The same data, with every class counting the same in training.

        An example of class c counts ``N / (C n_c)``, with N training examples, C classes among them and n_c examples of
        this one. Probabilities are then those of equally frequent classes.

        Example:
            >>> from leanbayes.data import load
            >>> [round(weight, 2) for weight in load("digits").balanced().class_weights[:3]]
            [1.01, 0.99, 1.01]
        """
        if self.task == "regression":
            raise ValueError(f"{self.name} is a regression, whose examples have no classes to weight; leave it out")
        counts = torch.bincount(self.train.y, minlength=self.classes or 0).tolist()
        known = sum(count > 0 for count in counts)
        weights = [len(self.train) / (known * count) if count else 0.0 for count in counts]
        least, most = (f"{chosen(weight for weight in weights if weight):.3g}" for chosen in (min, max))
        note = f"classes are balanced in training: an example counts from {least} to {most} times"
        return replace(self, class_weights=tuple(weights), notes=(*self.notes, note))

    def ready(self, name: PartName) -> tuple[Tensor, Tensor]:
        """Inputs and targets of a part, in memory and scaled: what the network is fed and fitted to."""
        part = self.part(name)
        return self.normalisation(part.tensor()), self.normalisation.scale_targets(part.y)

    def batches(self, name: PartName, batch_size: int, **options: Any) -> Batches:
        """Scaled batches of a part; the options are those of `Batches`.

        Example:
            >>> from leanbayes.data import load
            >>> x, y = next(iter(load("digits").batches("train", 32, shuffle=True, seed=0)))
            >>> x.shape, y.dtype
            (torch.Size([32, 1, 8, 8]), torch.int64)
        """
        part, scale = self.part(name), self.normalisation
        return Batches(part.x, part.y, batch_size, transform=scale, target_transform=scale.scale_targets, **options)

    def __repr__(self) -> str:
        kind = f"{self.classes} classes" if self.task == "classification" else self.task
        return (
            f"Dataset({self.name!r}: {self.inputs} {self.shape}, {kind}, "
            f"{len(self.train)} train, {len(self.valid)} valid, {len(self.test)} test)"
        )

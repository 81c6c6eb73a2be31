"""From rules to a plan: which module gets which method, checked in full before anything changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from torch import nn

from leanbayes.convert.conversions import is_converted, join
from leanbayes.convert.converters import find_converter, why_unservable
from leanbayes.convert.selectors import Selector, named, output_names, types
from leanbayes.ops import op_for
from leanbayes.posteriors._method import Method

Predicate = Callable[[str, nn.Module], bool]


@dataclass
class Unit:
    """A module that conversion treats as one, with all its names.

    Attributes:
        module: The module.
        names: Its names in the model, the first one as registered.
        kind: What `Method.kinds` calls it, None where no conversion is known.
        problem: Why it cannot be converted whatever the method.
        method: The method that it gets.
        reason: Why it gets none.
        chosen: Whether a rule spoke of it, so that None is the user's word.
    """

    module: nn.Module
    names: list[str]
    kind: str | None
    problem: str | None
    method: Method | None = None
    reason: str = ""
    chosen: bool = False

    @property
    def name(self) -> str:
        """The first name, which messages use."""
        return self.names[0]

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that it answers for; where there is no converter, children are units of their own."""
        for parameter in self.module.parameters(recurse=self.kind is not None):
            if not isinstance(parameter, nn.UninitializedParameter):
                yield parameter

    def label(self) -> str:
        """Name and type for messages."""
        return f"{self.name or 'the model itself'} ({type(self.module).__name__})"


@dataclass
class Plan:
    """What conversion will do.

    Attributes:
        units: All units with their methods or reasons.
        ties: Units that share one weight.
    """

    units: list[Unit]
    ties: list[list[Unit]] = field(default_factory=list)


def find_units(model: nn.Module) -> list[Unit]:
    """All modules that have a converter or parameters of their own, outermost first, each once."""
    units: dict[int, Unit] = {}

    def visit(module: nn.Module, name: str) -> None:
        known = units.get(id(module))
        if known is not None:
            known.names.append(name)
            if known.kind is not None:
                return
        found = find_converter(module)
        if found is not None:
            units[id(module)] = Unit(module, [name], found[0], why_unservable(module))
            return
        if known is None and next(module.parameters(recurse=False), None) is not None:
            problem = f"no conversion of {type(module).__name__} is known"
            units[id(module)] = Unit(module, [name], None, problem)
        for child_name, child in module._modules.items():
            if child is not None:
                visit(child, join(name, child_name))

    visit(model, "")
    return list(units.values())


def make_plan(model: nn.Module, method: Any, where: Any) -> Plan:
    """Resolve rules into a plan, or raise one clear error."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"bayesianize takes an nn.Module, not {type(model).__name__}")
    if is_converted(model):
        raise ValueError(
            "the model is already converted; convert the plain model once, with an ordered mapping of rules to mix "
            "families (lb.point_estimate gives a plain model back)"
        )
    units = find_units(model)
    if isinstance(method, Mapping):
        if where is not None:
            raise TypeError("where= goes with one method; with a mapping of rules, put the selectors in its keys")
        _apply_rules(model, units, method)
    elif isinstance(method, Method):
        _apply_method(model, units, method, where)
    else:
        raise TypeError(f"bayesianize takes a method such as lb.Rank1() or a mapping of rules, not {method!r}")
    plan = Plan(units)
    _resolve_ties(model, plan)
    _check_ranks(plan)
    return plan


def _apply_method(model: nn.Module, units: list[Unit], method: Method, where: Any) -> None:
    if where is None:
        heads = output_names(model) if "output" in method.default_kinds else []
        for unit in units:
            default = unit.kind in method.default_kinds or any(name in heads for name in unit.names)
            _assign(unit, method, default, f"{type(method).__name__} does not take it unless `where` asks for it")
        if not any(unit.method for unit in units):
            raise ValueError(
                f"{type(method).__name__} finds no layer it supports in this {type(model).__name__}; "
                f"{_candidates(units, method)}"
            )
        return
    predicate = _predicate(where)
    for unit in units:
        _assign(unit, method, _selected(predicate, unit), "not selected by `where`")
    _check_rule(model, units, method, predicate, repr(where) if isinstance(where, Selector) else "where")


def _apply_rules(model: nn.Module, units: list[Unit], rules: Mapping[Any, Method | None]) -> None:
    if not rules:
        raise ValueError("the mapping of rules is empty; pass at least one selector with a method")
    for method in rules.values():
        if method is not None and not isinstance(method, Method):
            raise TypeError(f"a rule takes a method or None, not {method!r}")
        if method is not None and method.whole_model:
            name = type(method).__name__
            raise ValueError(f"{name} takes the whole model; pass it alone, with of=... for the members' method")
    for key, method in rules.items():
        predicate = _predicate(key)
        for unit in units:
            if not unit.chosen and _selected(predicate, unit):
                unit.chosen = True
                if method is None:
                    unit.reason = f"the rule {_text(key)} leaves it alone"
                else:
                    _assign(unit, method, True, "")
        _check_rule(model, units, method, predicate, _text(key))
    for unit in units:
        if not unit.chosen:
            unit.reason = "no rule matches it"
    if not any(unit.method for unit in units):
        raise ValueError("the rules leave every layer alone; give at least one of them a method")


def _assign(unit: Unit, method: Method, selected: bool, otherwise: str) -> None:
    """Give a unit its method, or the reason why it gets none."""
    if unit.problem is not None:
        unit.reason = unit.problem
    elif unit.kind not in method.kinds:
        unit.reason = f"{type(method).__name__} does not support {type(unit.module).__name__}"
    elif not selected:
        unit.reason = otherwise
    else:
        unit.method = method


def _check_rule(model: nn.Module, units: list[Unit], method: Method | None, predicate: Predicate, text: str) -> None:
    """Raise where a rule matches nothing that its method can serve, or names a module that it cannot."""
    modules = dict(model.named_modules(remove_duplicate=False))
    by_name = {name: unit for unit in units for name in unit.names}
    for name in getattr(predicate, "exact", ()):
        if name not in modules:
            raise ValueError(
                f"{text} matches nothing: the model has no module named {name!r}; {_candidates(units, method)}"
            )
        unit = by_name.get(name)
        if method is None:
            continue
        if unit is None:
            hint = f"; lb.named('{name}.*') selects what is inside" if next(modules[name].children(), None) else ""
            raise ValueError(f"{name} ({type(modules[name]).__name__}) is not a layer that can be converted{hint}")
        if unit.problem is not None or unit.kind not in method.kinds:
            raise ValueError(
                f"{unit.label()} was asked for by name, but {_why_not(unit, method)}; {_candidates(units, method)}"
            )
    matched = [unit for unit in units if _selected(predicate, unit)]
    if method is None:
        if not matched and not any(predicate(name, module) for name, module in modules.items()):
            raise ValueError(f"{text} matches nothing; {_candidates(units, method)}")
        return
    if not any(unit.problem is None and unit.kind in method.kinds for unit in matched):
        labels = ", ".join(unit.label() for unit in matched[:3])
        only = f", only {labels}: {_why_not(matched[0], method)}" if matched else ""
        raise ValueError(
            f"{text} matches nothing that {type(method).__name__} supports{only}; {_candidates(units, method)}"
        )


def _why_not(unit: Unit, method: Method) -> str:
    """Why a method does not support a module."""
    return unit.problem or f"{type(method).__name__} does not support {type(unit.module).__name__}"


def _candidates(units: list[Unit], method: Method | None) -> str:
    """What could have matched."""
    kinds = None if method is None else method.kinds
    names = [u.label() for u in units if u.problem is None and (kinds is None or u.kind in kinds)]
    if not names:
        return "the model has no layer that could match"
    more = f" and {len(names) - 6} more" if len(names) > 6 else ""
    return f"it could match {', '.join(names[:6])}{more}"


def _predicate(key: Any) -> Predicate:
    if isinstance(key, str):
        return named(key)
    if isinstance(key, type):
        return types(key)
    if callable(key):
        return cast(Predicate, key)
    raise TypeError(f"a rule is a selector, a glob, a module class or a predicate (name, module) -> bool, not {key!r}")


def _text(key: Any) -> str:
    return key.__name__ if isinstance(key, type) else repr(key)


def _selected(predicate: Predicate, unit: Unit) -> bool:
    return any(predicate(name, unit.module) for name in unit.names)


def _resolve_ties(model: nn.Module, plan: Plan) -> None:
    """Let a rule on one of several layers with one weight serve all of them, or say why it cannot."""
    owners: dict[int, list[Unit]] = {}
    for unit in plan.units:
        for parameter in unit.parameters():
            if parameter.dim() > 1 or unit.kind == "norm":
                owners.setdefault(id(parameter), []).append(unit)
    for partners in owners.values():
        unique = list({id(unit): unit for unit in partners}.values())
        with_method = [unit for unit in unique if unit.method is not None]
        if len(unique) < 2 or not with_method:
            continue
        plan.ties.append(unique)
        first = with_method[0]
        for other in unique:
            if other is first:
                continue
            both = f"{first.label()} and {other.label()} share one weight"
            if other.method is not None and other.method != first.method:
                raise ValueError(f"{both}, but the rules give them two methods, {first.method} and {other.method}")
            if other.method is None and other.chosen:
                raise ValueError(f"{both}, but the rules convert one and leave the other alone")
            if other.problem is not None or other.kind not in first.method.kinds:  # pyright: ignore
                why = _why_not(other, first.method)  # pyright: ignore[reportArgumentType]
                names = ", ".join(repr(unit.name) for unit in unique)
                raise ValueError(
                    f"{both}, but {why}; leave both alone with `& ~lb.named({names})` in `where`, or untie them"
                )
            if {first.kind, other.kind} - {"linear", "embedding"}:
                raise ValueError(f"{both}; only dense layers, convolutions and embeddings can be tied")
            other.method = first.method


def _check_ranks(plan: Plan) -> None:
    """Raise where no layer can take a method and all would fall back to another one."""
    fitting: dict[Method, bool] = {}
    for unit in plan.units:
        if unit.method is None:
            continue
        for value in unit.module.parameters():
            if value.dim() >= 2:
                op = op_for(unit.module)
                fits = unit.method.fallback(value, op) is None
                fitting[unit.method] = fitting.get(unit.method, False) or fits
    for method, fits in fitting.items():
        if not fits:
            raise ValueError(f"{method} fits no layer: every weight has a shorter side; choose a smaller rank")

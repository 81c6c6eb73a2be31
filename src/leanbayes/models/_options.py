"""Checks of model options, whose errors name the option, the value and what is allowed."""

from collections.abc import Iterable, Sequence


def check_positive(**values: int) -> None:
    """Raises unless every value is a whole number of at least one."""
    for option, value in values.items():
        if not _is_count(value):
            raise ValueError(f"{option} must be a positive whole number, not {value!r}")


def check_widths(**values: Sequence[int]) -> None:
    """Raises unless every value is a sequence, maybe empty, of positive whole numbers."""
    for option, value in values.items():
        if not isinstance(value, Sequence) or not all(_is_count(width) for width in value):
            raise ValueError(f"{option} must be a list of positive whole numbers, not {value!r}")


def check_choice(option: str, value: str, choices: Iterable[str]) -> None:
    """Raises unless the value is among the choices."""
    choices = tuple(choices)
    if value not in choices:
        raise ValueError(f"{option} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_dropout(value: float) -> None:
    """Raises unless the value is a drop probability."""
    if not isinstance(value, int | float) or not 0 <= value < 1:
        raise ValueError(f"dropout must be a probability in [0, 1), not {value!r}")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0

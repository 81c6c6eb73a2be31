"""HTML and SVG as strings, with everything escaped that is not markup already."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = frozenset({"br", "img", "input", "meta"})


class Markup(str):
    """Text that is markup, and is not escaped again."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, /, *children: Child, **attributes: str | float | bool | None) -> Markup:
    """An element.

    Args:
        name: Of the element.
        *children: Text, which is escaped, markup, which is not, or nested lists of both; None is left out.
        **attributes: Underscores become hyphens, one at the end is dropped (``class_``); None and False leave the
            attribute out, True writes it without a value.

    Returns:
        The markup.

    Example:
        >>> tag("p", "1 < 2", tag("br"), class_="note", aria_hidden="true")
        '<p class="note" aria-hidden="true">1 &lt; 2<br></p>'
    """
    opening = "".join((name, *(_attribute(key, value) for key, value in attributes.items())))
    if name in _VOID:
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """The children one after the other, escaped where they are not markup."""
    return Markup("".join(_text(child) for child in children))


def hidden(text: str) -> Markup:
    """Text for screen readers alone."""
    return tag("span", text, class_="sr")


def px(value: float) -> str:
    """A coordinate with one decimal at most.

    Example:
        >>> px(12.04), px(0.25)
        ('12', '0.2')
    """
    return f"{value:.1f}".removesuffix(".0")


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    if isinstance(child, int | float):
        return str(child)
    return join(child)


def _attribute(key: str, value: str | float | bool | None) -> str:
    name = key.removesuffix("_").replace("_", "-")
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    text = px(value) if isinstance(value, float) else str(value)
    return f' {name}="{html.escape(text)}"'

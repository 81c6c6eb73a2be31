"""Pieces of the page that several sections use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from leanbayes.report.content import Entry
from leanbayes.report.markup import Child, Markup, tag
from leanbayes.report.svg import key


def section(name: str, title: str, *children: Child) -> Markup:
    """A section with its heading."""
    return tag("section", tag("h2", title, id=f"{name}-title"), children, id=name, aria_labelledby=f"{name}-title")


def figure(name: str, caption: str, *children: Child) -> Markup:
    """A plot with its caption."""
    return tag("figure", children, tag("figcaption", caption), data_plot=name)


def switch(group: str, legend: str, options: Sequence[tuple[str, str, Child]], other: Child = None) -> Markup:
    """Panels of which one is shown; all of them where scripts do not run.

    Args:
        group: The name of the switch on the page.
        legend: What is chosen.
        options: Key, title and content of each panel; the first is shown at the start.
        other: Another control beside this one.

    Returns:
        The control and the panels.
    """
    panels = [
        tag("div", tag("p", title, class_="panel-title"), content, data_panel=group, data_key=option)
        for option, title, content in options
    ]
    if len(options) == 1:
        return tag("div", other, options[0][2])
    radios = [
        tag(
            "label",
            tag("input", type="radio", name=group, value=option, checked=position == 0, data_switch=group),
            tag("span", title),
        )
        for position, (option, title, _) in enumerate(options)
    ]
    buttons = tag("fieldset", tag("legend", legend), radios, class_="control segments")
    return tag("div", tag("div", buttons, other, class_="controls"), panels)


def highlight(entries: Iterable[Entry]) -> Markup:
    """A list from which one method is brought out in the plots that show all."""
    options = [tag("option", "No method", value=""), *(tag("option", e.title, value=str(e.index)) for e in entries)]
    return tag("label", tag("span", "Highlight"), tag("select", options, data_highlight=True), class_="control")


def multiples(items: Iterable[tuple[Entry, str, Child]]) -> Markup:
    """One small plot per method, each under its method's name and a short note."""
    cells = [
        tag(
            "li",
            tag("p", method(entry), tag("span", note, class_="note") if note else None, class_="multiple-title"),
            plot,
        )
        for entry, note, plot in items
    ]
    return tag("ul", cells, class_="multiples")


def method(entry: Entry) -> Markup:
    """A method's name after its mark."""
    return tag("span", key(entry.index), tag("span", entry.title), class_="method")


def legend(*items: tuple[Markup, str]) -> Markup:
    """What the marks of a plot mean."""
    return tag("ul", [tag("li", sign, tag("span", text)) for sign, text in items], class_="legend")

"""The examples of which each method is most and least certain."""

from __future__ import annotations

from leanbayes.report.blocks import figure, method
from leanbayes.report.content import Comparison, Entry, Example
from leanbayes.report.images import data_uri
from leanbayes.report.markup import Markup, tag

_SHOWN_CLASSES = 4


def examples(comparison: Comparison, first: Entry | None) -> Markup | None:
    """A panel per method, of which one is shown.

    Args:
        comparison: All methods.
        first: The method to start with, if it has examples.

    Returns:
        The figure.
    """
    entries = [entry for entry in comparison.done if entry.certain or entry.uncertain]
    if not entries:
        return None
    chosen = first if first in entries else entries[0]
    options = [tag("option", entry.title, value=str(entry.index), selected=entry is chosen) for entry in entries]
    control = tag("label", tag("span", "Method"), tag("select", options, data_switch="examples"), class_="control")
    panels = [
        tag("div", tag("h3", method(entry)), _panel(entry), data_panel="examples", data_key=str(entry.index))
        for entry in entries
    ]
    return figure(
        "examples",
        f"Test examples with the most probable classes of each prediction, up to {_SHOWN_CLASSES}; a cross marks a "
        "wrong one. Good uncertainty ranks the wrong predictions among the least certain.",
        control if len(entries) > 1 else None,
        panels,
    )


def _panel(entry: Entry) -> list[Markup]:
    groups = (("Least certain", entry.uncertain), ("Most certain", entry.certain))
    return [
        tag("div", tag("h4", title), tag("ul", [_card(example) for example in found], class_="cards"))
        for title, found in groups
        if found
    ]


def _card(example: Example) -> Markup:
    wrong = bool(example.label) and example.label != example.predicted
    ranked = sorted(example.probs.items(), key=lambda item: -item[1])[:_SHOWN_CLASSES]
    verdict = f"✗ {example.predicted}, really {example.label}" if wrong else f"✓ {example.predicted}"
    if not example.label:
        verdict = example.predicted
    return tag(
        "li",
        _picture(example),
        tag("p", verdict, class_="verdict wrong" if wrong else "verdict"),
        tag("ul", [_bar(name, value, name == example.label) for name, value in ranked], class_="bars"),
        class_="card",
    )


def _picture(example: Example) -> Markup | None:
    address = data_uri(example.image)
    if address is None:
        return None
    return tag("img", src=address, alt=f"Example of class {example.label or 'unknown'}", class_="pixels", width="72")


def _bar(name: str, value: float, true: bool) -> Markup:
    share = min(max(value, 0.0), 1.0)
    return tag(
        "li",
        tag("span", name, class_="class true" if true else "class"),
        tag("span", tag("span", style=f"width:{100 * share:.1f}%"), class_="track", aria_hidden="true"),
        tag("span", f"{100 * share:.0f}%", class_="value"),
    )

"""The page as a whole."""

from __future__ import annotations

from importlib import resources

from leanbayes.report.blocks import section
from leanbayes.report.choice import firm
from leanbayes.report.content import Comparison
from leanbayes.report.examples import examples
from leanbayes.report.intervals import coverage, intervals, position
from leanbayes.report.markup import Markup, join, tag
from leanbayes.report.multiples import entropy, reliability, training_curves
from leanbayes.report.scatter import calibration_against_parameters, quality_against_cost
from leanbayes.report.severity import metric_against_severity
from leanbayes.report.summary import recommended, summarise
from leanbayes.report.table import comparison_table

# The page asks for nothing from outside, and browsers hold it to that.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def render(comparison: Comparison) -> str:
    """The whole HTML file."""
    sections = _sections(comparison)
    title = f"Comparison on {comparison.data}"
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'),
        tag("title", f"{title} – leanbayes"),
        tag("style", Markup(_resource("style.css"))),
    )
    body = tag(
        "body",
        tag("a", "Skip to the comparison", href="#main", class_="skip"),
        _header(comparison, title, sections),
        tag("main", [section(name, heading, content) for name, heading, content in sections], id="main", tabindex="-1"),
        tag("footer", tag("p", "Written by leanbayes. This file needs no network.")),
        tag("script", Markup(_resource("script.js"))),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _sections(comparison: Comparison) -> list[tuple[str, str, Markup]]:
    costs = [plot for plot in (quality_against_cost(comparison), calibration_against_parameters(comparison)) if plot]
    spreads = [plot for plot in (coverage(comparison), position(comparison), intervals(comparison)) if plot]
    found = [
        ("choose", "Which method to choose", _findings(comparison)),
        ("notes", "Notes on the data", _notes(comparison)),  # what they say may make the figures worthless
        ("table", "All methods", comparison_table(comparison) if comparison.entries else None),
        ("cost", "Quality against cost", tag("div", costs) if costs else None),
        ("reliability", "Reliability", reliability(comparison)),
        ("intervals", "Prediction intervals", tag("div", spreads) if spreads else None),
        ("severity", "Corrupted data", metric_against_severity(comparison)),
        ("entropy", "Unfamiliar inputs", entropy(comparison)),
        ("examples", "Examples", examples(comparison, recommended(comparison))),
        ("training", "Training", training_curves(comparison)),
    ]
    return [(name, title, content) for name, title, content in found if content is not None]


def _header(comparison: Comparison, title: str, sections: list[tuple[str, str, Markup]]) -> Markup:
    facts = [
        tag("div", tag("dt", label), tag("dd", tag("code", text) if label == "Command" else text))
        for label, text in comparison.facts
    ]
    links = [tag("li", tag("a", heading, href=f"#{name}")) for name, heading, _ in sections]
    themes = [
        tag("option", text, value=value) for value, text in (("", "System"), ("light", "Light"), ("dark", "Dark"))
    ]
    count = f"{len(comparison.entries)} method{'s' if len(comparison.entries) != 1 else ''}"
    return tag(
        "header",
        tag("div", tag("h1", title), tag("p", f"{count}, one budget: quality, uncertainty and cost.", class_="lead")),
        tag("label", tag("span", "Theme"), tag("select", themes, id="theme"), class_="control theme"),
        tag("dl", facts) if facts else None,
        tag("nav", tag("ul", links), aria_label="Sections"),
    )


def _findings(comparison: Comparison) -> Markup | None:
    findings = summarise(comparison)
    if not findings:
        return None
    first, *rest = findings
    others = [tag("div", tag("dt", finding.question), tag("dd", finding.answer)) for finding in rest]
    # What one training of each method says stands in the same type as everything else.
    style = "verdict-line" if firm(comparison) else "tentative-line"
    remarks = tag("ul", [tag("li", remark) for remark in first.more]) if first.more else None
    choice = tag("div", tag("p", first.answer), remarks, class_=style)
    return join([choice, tag("dl", others, class_="findings") if others else None])


def _notes(comparison: Comparison) -> Markup | None:
    return tag("ul", [tag("li", note) for note in comparison.notes], class_="notes") if comparison.notes else None


def _resource(name: str) -> str:
    return resources.files("leanbayes.report").joinpath(name).read_text(encoding="utf-8")

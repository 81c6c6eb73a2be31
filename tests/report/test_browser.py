"""The page in a real browser."""

import html
import json
import re
import shutil
import subprocess

import pytest

from leanbayes.report import write_report
from tests.report import fake
from tests.report.test_page import PLOTS

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium"),
]

# Runs inside the page and tells the page around what it sees.
PROBE = """
addEventListener("load", () => {
  const all = (selector, from = document) => Array.from(from.querySelectorAll(selector));
  const seen = (element) => element.getBoundingClientRect().width > 20 && element.getBoundingClientRect().height > 20;
  const rows = () => all("#comparison-table tbody tr").map((row) => row.dataset.name);
  const head = (key) => document.querySelector(`th[data-key="${key}"]`);
  const click = (key) => { head(key).querySelector("button").click(); return rows(); };
  const overlap = (a, b) => Math.max(0, Math.min(a.right, b.right) - Math.max(a.left, b.left))
    * Math.max(0, Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top));
  const collisions = (plot) => {
    const boxes = all("text.name", plot).map((text) => text.getBoundingClientRect());
    return boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => overlap(a, b) > 0.15 * a.height * a.height)).length;
  };
  const outside = (plot) => all("text", plot).filter((text) => {
    const box = text.getBoundingClientRect();
    return box.left < -1 || box.right > innerWidth + 1;
  }).length;
  const plots = all(".plot").filter(seen);
  const facts = {
    ready: document.documentElement.dataset.ready,
    ground: getComputedStyle(document.body).backgroundColor,
    plots: all("figure[data-plot]").filter((figure) => all("svg.plot, img", figure).some(seen))
      .map((figure) => figure.dataset.plot),
    images: all("img").every((image) => image.complete && image.naturalWidth > 0),
    overflow: document.documentElement.scrollWidth - innerWidth,
    collisions: plots.map(collisions).reduce((a, b) => a + b, 0),
    outside: plots.map(outside).reduce((a, b) => a + b, 0),
    smallest: Math.min(...plots.map((plot) => 11 * plot.getBoundingClientRect().width / plot.viewBox.baseVal.width)),
    sorted: rows(),
    order: head("nll").getAttribute("aria-sort"),
    accuracy: click("accuracy"),
    accuracyOrder: head("accuracy").getAttribute("aria-sort"),
    reversed: click("accuracy"),
    said: document.getElementById("sorted").textContent,
    others: all("th[aria-sort]").filter((th) => th.getAttribute("aria-sort") !== "none").length,
  };
  const shown = () => all('[data-panel="severity-metric"]').filter((panel) => !panel.hidden).map((p) => p.dataset.key);
  facts.before = shown();
  document.querySelector('input[data-switch="severity-metric"][value="ece"]').click();
  facts.after = shown();
  facts.examples = all('[data-panel="examples"]').filter((panel) => !panel.hidden).length;
  const list = document.querySelector("[data-highlight]");
  list.value = "2";
  list.dispatchEvent(new Event("change"));
  facts.bright = [...new Set(all(".variant .series:not(.dimmed)").map((series) => series.dataset.method))];
  parent.postMessage(JSON.stringify(facts), "*");
});
"""
AROUND = """<!doctype html><body style="margin:0"><script>
addEventListener("message", (event) => {{ document.body.dataset.facts = event.data; }});
</script><iframe src="probed.html{fragment}" style="border:0;width:{width}px;height:900px"></iframe>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    text = write_report(fake.write(folder, fake.comparison())).read_text(encoding="utf-8")
    (folder / "probed.html").write_text(text.replace("</body>", f"<script>{PROBE}</script></body>"), encoding="utf-8")
    return folder


def browse(folder, address, *options):
    """The page's elements after loading, and what the browser logged."""
    assert CHROMIUM is not None
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
        f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=5000", "--window-size=1300,1000", *options,
        "--dump-dom", address,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def facts(folder, width=1200, fragment="", *options):
    around = folder / "around.html"
    around.write_text(AROUND.format(width=width, fragment=fragment), encoding="utf-8")
    text, console = browse(folder, around.as_uri(), *options)
    assert not console
    found = re.search(r'data-facts="([^"]*)"', text)
    assert found, text[:2000]
    return json.loads(html.unescape(found[1]))


def names_by(key, *, reverse=False):
    methods = fake.comparison()["methods"]
    return [m["name"] for m in sorted(methods, key=lambda m: sum(m["metrics"][key]), reverse=reverse)]


def test_the_file_loads_without_console_errors(folder):
    address = (folder / "report.html").as_uri()
    text, console = browse(folder, f"{address}#sort=nll:desc")
    assert not console
    assert 'data-ready="true"' in text
    assert re.findall(r'data-name="(\w+)"', text) == names_by("nll", reverse=True)
    assert re.findall(r'data-plot="([\w-]+)"', text) == PLOTS


def test_console_errors_would_be_seen(folder):
    (folder / "broken.html").write_text("<script>nothing.there()</script>")
    assert browse(folder, (folder / "broken.html").as_uri())[1]


@pytest.mark.parametrize("width", [1200, 800, 390, 320])
def test_every_plot_can_be_seen_and_read(folder, width):
    found = facts(folder, width)
    assert found["ready"] == "true"
    assert found["plots"] == PLOTS
    assert found["images"]
    assert found["overflow"] <= 0
    assert found["outside"] == 0
    assert found["smallest"] >= 8  # px, of the smallest text in plots
    assert found["collisions"] <= (0 if width > 400 else 1)


def test_sorting_and_switches(folder):
    found = facts(folder, 1200, "#sort=nll:asc")
    assert found["sorted"] == names_by("nll")
    assert found["order"] == "ascending"
    # The first choice of a heading puts the best on top.
    assert found["accuracy"] == names_by("accuracy", reverse=True)
    assert found["accuracyOrder"] == "descending"
    assert found["reversed"] == names_by("accuracy")
    assert found["said"] == "Sorted by Accuracy, ascending"
    assert found["others"] == 1
    assert found["before"] == ["accuracy"] and found["after"] == ["ece"]
    assert found["examples"] == 1
    assert found["bright"] == ["2"]


def test_light_and_dark(folder):
    light, dark = "rgb(255, 255, 255)", "rgb(21, 24, 28)"
    assert facts(folder, 1200, "#theme=dark")["ground"] == dark
    assert facts(folder, 1200, "#theme=light")["ground"] == light
    preference = "--blink-settings=preferredColorScheme={}"
    assert facts(folder, 1200, "", preference.format(0))["ground"] == dark
    assert facts(folder, 1200, "", preference.format(1))["ground"] == light

"""Brings the pictures of results/, which lie beside the files that they are drawn from, into the built pages."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).resolve().parents[1] / "results"


def on_files(files: Files, config: Any) -> Files:
    """Add results/*.png as results/*.png of the site."""
    for path in sorted(RESULTS.glob("*.png")):
        files.append(File.generated(config, f"results/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Addresses of pictures as they are in the site."""
    return markdown.replace("](../results/", "](results/")

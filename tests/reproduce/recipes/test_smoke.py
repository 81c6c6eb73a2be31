"""Every recipe runs from end to end in its smoke preset."""

import json

import pytest

from leanbayes.reproduce import execute
from leanbayes.reproduce.recipe import recipes

# Takes about a second, so that the quick tests have one.
QUICK = "vn-kl"
EACH = [id if id == QUICK else pytest.param(id, marks=pytest.mark.slow) for id in recipes()]


@pytest.mark.parametrize("id", EACH)
def test_smoke(id, tmp_path):
    pytest.importorskip("matplotlib")
    recipe = recipes()[id]
    result = execute(recipe, preset="smoke", work=tmp_path, progress=False)
    stored = json.loads((tmp_path / "smoke" / f"{id}.json").read_text())
    assert stored == result and stored["rows"] and stored["checks"]
    assert (tmp_path / "smoke" / f"{id}.png").exists() == (recipe.draw is not None)
    # What is done is not done again.
    again = execute(recipe, preset="smoke", work=tmp_path, progress=False)
    assert again["rows"] == result["rows"] and again["checks"] == result["checks"] and again["notes"] == result["notes"]

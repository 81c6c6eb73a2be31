"""CIFAR-100 is replaced by generated images only where there is no copy of it, and work on them is kept apart."""

import pytest

from leanbayes.data import generate
from leanbayes.reproduce.recipe import recipes
from leanbayes.reproduce.recipes import vn_cifar100

SCORES = {
    "one": 1.0, "mean": 2.0, "averaged": 3.0, "zero_mean": 3.0, "permuted": 5.0, "log_alpha": {}, "curves": {},
    "weights_alone": {"one": 1.0, "averaged": 3.0},
}  # fmt: skip


@pytest.fixture
def trained(monkeypatch):
    """Puts a note of its key and of the numbers of images in the place of each training."""
    seen = []

    def scores(run, name, seed, train, test, *, key):
        seen.append((name, key, len(train[1]), len(test[1])))
        return SCORES

    monkeypatch.setattr(vn_cifar100, "vgg_scores", scores)
    return seen


@pytest.fixture
def measure(make_run):
    def do(**options):
        run = make_run("vn-cifar100", settings=recipes()["vn-cifar100"].presets["smoke"], **options)
        vn_cifar100.measure(run)
        return run

    return do


def test_a_smoke_run_in_a_folder_without_it_takes_few_generated_images(measure, trained, tmp_path):
    run = measure(preset="smoke", data=tmp_path)
    assert [one[1:] for one in trained] == [("cifar100-generated-", 100, 40)] * 2
    assert run.notes == [vn_cifar100._NO_COPY]


def test_other_runs_in_a_folder_without_it_take_many(measure, trained, tmp_path):
    measure(data=tmp_path)
    assert [one[1:] for one in trained] == [("cifar100-generated-", 10000, 2000)] * 2


def test_a_part_of_it_is_an_error(measure, trained, tmp_path):
    generate.write("cifar100", tmp_path, rows=(200, 100))
    (tmp_path / "cifar-100-binary" / "test.bin").unlink()
    with pytest.raises(FileNotFoundError, match="CIFAR-100 is not complete: .* lacks test.bin"):
        measure(data=tmp_path)
    assert not trained


def test_real_images_are_used_once_they_are_there(measure, trained, tmp_path):
    measure(preset="smoke", data=tmp_path)
    generate.write("cifar100", tmp_path, rows=(200, 100))
    run = measure(preset="smoke", data=tmp_path)
    assert [one[1:] for one in trained[2:]] == [("cifar100-", 200, 100)] * 2 and run.notes == []


def test_generated_images_are_not_filed_as_real_ones(measure, trained, tmp_path):
    run = measure(preset="smoke", data=tmp_path)
    assert run.generated and run._about()["data"] == "generated"
    measure(preset="smoke", data=tmp_path)
    assert len(trained) == 2, "what is done is not done again"

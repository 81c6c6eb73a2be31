import sys

import pytest

from leanbayes.data import generate, load, names, register
from leanbayes.data._dataset import Origin
from leanbayes.data._extras import need


def test_all_sets_are_named():
    assert names() == (
        "cifar10",
        "cifar100",
        "digits",
        "fashion-mnist",
        "imdb",
        "mimic-iii",
        "mnist",
        "tiny-imagenet-100",
        "uci-*",
    )


def test_names_are_taken_with_underscores_and_capitals(tmp_path):
    generate.write("fashion-mnist", tmp_path)
    assert load("Fashion_MNIST", root=tmp_path).class_names[0] == "T-shirt/top"


def test_root_from_the_environment(tmp_path, monkeypatch):
    generate.write("mnist", tmp_path)
    monkeypatch.setenv("LEANBAYES_DATA", str(tmp_path))
    assert len(load("mnist").test) == 100


def test_a_name_cannot_be_registered_twice():
    with pytest.raises(ValueError, match="a reader for 'mnist' is already registered"):
        register("mnist")(lambda root: None)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(
        ValueError, match=r"no data set named 'minst' and no such file \(did you mean mnist\?\); the names are cifar10"
    ):
        load("minst")


def test_unknown_options_list_the_known_ones(tmp_path):
    with pytest.raises(
        ValueError, match="'mnist' has no option 'vlaid'; its options are valid, seed, normalise, downl"
    ):
        load("mnist", root=tmp_path, vlaid=0.2)
    with pytest.raises(ValueError, match="has no option 'x'; its options are hours"):
        load("mimic-iii", root=tmp_path, x=1)


def test_missing_file():
    with pytest.raises(FileNotFoundError, match="there is no file nowhere.csv"):
        load("nowhere.csv")


def test_unknown_format(tmp_path):
    (tmp_path / "a.xlsx").touch()
    with pytest.raises(ValueError, match=r"a.xlsx has an unknown format; supported files end in .npz, .csv|.csv"):
        load(tmp_path / "a.xlsx")


def test_arrays_in_other_formats_can_be_saved_as_npz(tmp_path):
    (tmp_path / "a.pt").touch()
    with pytest.raises(ValueError, match=r"a.pt has an unknown format; .*; save arrays x and y with numpy.savez$"):
        load(tmp_path / "a.pt")


def test_an_archive_is_to_be_unpacked(tmp_path):
    (tmp_path / "a.csv.zip").touch()
    with pytest.raises(ValueError, match=r"a.csv.zip has an unknown format; .*; unpack it first$"):
        load(tmp_path / "a.csv.zip")


def test_folder_of_something_else(tmp_path):
    (tmp_path / "notes").mkdir()
    with pytest.raises(ValueError, match="holds neither folders of images"):
        load(tmp_path)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(
        ModuleNotFoundError, match=r"needs scikit-learn; install it with: pip install 'leanbayes\[data\]'"
    ):
        load("digits")
    with pytest.raises(ModuleNotFoundError, match="reading things needs nonexistent"):
        need("nonexistent.module", "things")


def test_a_set_knows_how_it_was_read(tmp_path):
    generate.write_uci(tmp_path, "yacht")
    origin = load("UCI_yacht", root=tmp_path, split=2).origin
    assert origin == Origin("uci-yacht", {"split": 2, "valid": 0.1, "seed": 0, "normalise": "standard"})
    path = generate.write_table(tmp_path / "table.csv")
    origin = load(path, drop=("x1",)).limited(9).origin
    assert origin is not None and (origin.name, origin.limit) == (None, 9)
    assert origin.options["drop"] == ["x1"] and origin.options["test"] == 0.2
    # What was read does not depend on how, and what JSON does not have is left out.
    generate.write("mnist", tmp_path)
    assert "download" not in load("mnist", root=tmp_path).origin.options
    generate.write("mimic-iii", tmp_path / "mimic")
    assert set(load("mimic-iii", root=tmp_path / "mimic").origin.options) >= {"hours", "masks", "seed"}


def test_the_nearest_file_is_suggested(tmp_path):
    (tmp_path / "customers.csv").write_text("a,y\n1,2\n")
    with pytest.raises(FileNotFoundError, match=r"costumers.csv \(did you mean .*customers.csv\?\)"):
        load(tmp_path / "costumers.csv")

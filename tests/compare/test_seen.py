"""What a run has seen: known again in other data, kept beside the model."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from leanbayes.compare import Seen, compare, load_checkpoint, save_checkpoint, unseen_rows
from leanbayes.compare.networks import build_network
from leanbayes.compare.seen import identity
from leanbayes.data import Part, generate, load
from leanbayes.objectives import Gaussian
from leanbayes.training import OutputError


@pytest.fixture
def table(tmp_path):
    return generate.write_table(tmp_path / "table.csv", rows=50)


def save(folder, dataset, **options):
    save_checkpoint(folder, build_network(dataset.schema, hidden=[2]), Gaussian(1.0), dataset.schema, **options)
    return load_checkpoint(folder)


def test_training_and_validation_rows_are_known(table):
    dataset = load(table)
    seen = Seen.of(dataset)
    assert seen.knows(dataset.train).all() and seen.knows(dataset.valid).all()
    assert not seen.knows(dataset.test).any()
    assert len(Seen.of(load(table, valid=0)).hashes) == 40


def test_the_record_is_kept_beside_the_model(table, tmp_path):
    dataset = load(table, seed=3, drop=["x1"]).limited(20)
    seen = Seen.of(dataset)
    saved = save(tmp_path / "model", dataset, seen=seen, data="table.csv")
    assert saved.about == {"data": "table.csv"}
    assert saved.seen is not None and np.array_equal(saved.seen.hashes, seen.hashes)
    assert (saved.seen.rows, saved.seen.origin) == (seen.rows, dataset.origin)
    # Eight bytes a row.
    assert (tmp_path / "model" / "seen.npy").stat().st_size < 128 + 8 * 40 + 1


def test_a_model_without_a_record_leaves_none_behind(table, tmp_path):
    dataset = load(table)
    save(tmp_path / "model", dataset, seen=Seen.of(dataset))
    assert save(tmp_path / "model", dataset).seen is None
    assert not (tmp_path / "model" / "seen.npy").exists()


def test_data_of_ones_own_are_known_by_their_rows(table, tmp_path):
    dataset = replace(load(table), origin=None)
    saved = save(tmp_path / "model", dataset, seen=Seen.of(dataset))
    found = unseen_rows(saved, table)
    # Their test part cannot be found again, and has the same rows.
    assert (len(found.part), found.seen, found.left_out) == (10, 0, 40)
    assert set(found.part.y.tolist()) == set(dataset.test.y.tolist())


def test_an_identity_names_what_decides_the_rows(table):
    first = identity(load(table))
    assert list(first)[0] == "data" and list(first)[-1] == "rows" and first["limit"] is None
    assert identity(load(table, valid=0.2))["rows"] != first["rows"]
    assert identity(load(table).limited(5)) | {"limit": None, "rows": None} == first | {"rows": None}


def test_other_data_from_elsewhere_are_not_taken_for_the_same(table, tmp_path):
    settings = {"out": tmp_path / "out", "progress": False, "hidden": [2], "samples": 2}
    other = load(generate.write_table(tmp_path / "other.csv", rows=30, seed=1))
    compare(load(table), ["plain"], 1, ood=other, **settings)
    changed = replace(other, test=Part(torch.as_tensor(other.test.x) + 1, other.test.y))
    with pytest.raises(OutputError, match="has a different value for ood"):
        compare(load(table), ["plain"], 1, ood=changed, resume=True, **settings)
    compare(load(table), ["plain"], 1, ood=other, resume=True, **settings)

"""The data of a run are read once, whatever its parts; another process reads its own."""

import pickle

from leanbayes.reproduce.datasets import Datasets


def test_parts_of_a_run_share_what_was_read(make_run):
    run = make_run(preset="smoke")
    found = run.load("mnist", rows=(20, 10))
    parts = run.changed(lr=1), run.as_recipe("vn-kl"), run.decided_by(lambda name, settings: {})
    assert all(part.load("mnist", rows=(20, 10)) is found for part in parts)
    assert run.load("mnist", rows=(30, 10)) is not found and run.notes == ["generated data"]


def test_data_that_are_missing_are_missing_for_all_parts(make_run, tmp_path):
    run = make_run(data=tmp_path)
    part = run.changed(lr=1)
    part.generate_without("mnist", "generated digits", rows=(20, 10))
    assert run.generated and len(run.load("mnist", rows=(20, 10)).test) == 10 and run.notes == ["generated digits"]


def test_another_process_gets_no_data():
    datasets = Datasets(None, download=False, smoke=True)
    datasets.load("mnist", rows=(20, 10))
    assert len(pickle.dumps(datasets)) < 1000 and pickle.loads(pickle.dumps(datasets)).kind == "generated"

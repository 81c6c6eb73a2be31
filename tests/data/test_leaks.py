import numpy as np
import pytest

from leanbayes.data import load

ROWS = 120
RANDOM = np.random.RandomState(0)
PRICE = np.round(RANDOM.lognormal(3, 1, ROWS), 2)
CODE = np.arange(ROWS) % 3
NAME = np.array(["low", "middle", "high"])[CODE]
NOISE = np.round(RANDOM.randn(ROWS), 3)


def on_leaks(tmp_path, y, leak, ending="csv", **options):
    """What is said of a column of the name "leak" in a table with one other feature."""
    lines = [f"{n},{a},{b}" for n, a, b in zip(NOISE, leak, y)]
    (tmp_path / "a.csv").write_text("\n".join(["noise,leak,y", *lines]) + "\n")
    return [note for note in load(tmp_path / "a.csv", **options).notes if "exact function" in note]


@pytest.mark.parametrize(
    "leak",
    [PRICE, np.round(PRICE * 1.0837, 2), PRICE * 0.3048, 100 - 2 * PRICE, np.round(PRICE / 1000, 5)],
    ids=["copy", "cents", "units", "negative", "thousands"],
)
def test_the_target_in_other_units(tmp_path, leak):
    said = (
        "column 'leak' is an exact function of the target 'y'; if it is not known when you predict, leave it out with "
    )
    assert on_leaks(tmp_path, PRICE, leak) == [f"{said}drop=['leak']"]


def test_degrees_that_were_rounded(tmp_path):
    celsius = np.round(RANDOM.uniform(-5, 30, ROWS), 1)
    assert on_leaks(tmp_path, celsius, np.round(celsius * 1.8 + 32, 1))


@pytest.mark.parametrize("y", [CODE, NAME, CODE * 0.5], ids=["code", "text", "numbers"])
@pytest.mark.parametrize("leak", [CODE, NAME, 7.5 - CODE, CODE**2], ids=["code", "text", "units", "code 2"])
def test_the_classes_by_another_name(tmp_path, y, leak):
    assert len(on_leaks(tmp_path, y, leak)) == 1


def test_rows_in_the_order_of_their_classes(tmp_path):
    y = np.repeat([0, 1], 1500)
    random = np.random.RandomState(0)
    (tmp_path / "a.csv").write_text(
        "noise,leak,y\n" + "".join(f"{random.randn()},{'no yes'.split()[i]},{i}\n" for i in y)
    )
    assert len(load(tmp_path / "a.csv", target="y").notes) == 2


def test_many_classes(tmp_path):
    towns = np.array([f"town {i}" for i in range(15)])[np.arange(ROWS) % 15]
    assert on_leaks(tmp_path, towns, np.arange(ROWS) * 7 % 15)
    assert not on_leaks(tmp_path, towns, np.arange(ROWS) % 14)


def test_yes_and_no_as_one_and_zero(tmp_path):
    answers = np.array(["yes", "No", "YES", "no"])[np.arange(ROWS) % 4]
    assert on_leaks(tmp_path, answers, 1 - np.arange(ROWS) % 2)


def test_a_copy_with_gaps(tmp_path):
    gaps = np.arange(ROWS) % 4 == 0
    assert on_leaks(tmp_path, NAME, np.where(gaps, "", NAME))
    assert on_leaks(tmp_path, PRICE, np.where(gaps, "", PRICE.astype(str)))
    # Known in few rows, it tells little.
    assert not on_leaks(tmp_path, NAME, np.where(np.arange(ROWS) % 8, "", NAME))


def test_columns_that_predict_well_are_not_named(tmp_path):
    good = PRICE + 0.03 * PRICE.std() * RANDOM.randn(ROWS)
    assert np.corrcoef(good, PRICE)[0, 1] > 0.999
    assert not on_leaks(tmp_path, PRICE, good)
    # One row of another size makes the correlation, and the deviation of the others small beside it.
    heavy = np.append(PRICE[1:], 1e9)
    assert not on_leaks(tmp_path, heavy, np.append(RANDOM.rand(ROWS - 1), 2e9))
    # Whole numbers that differ by one at most are rounded to what they differ by.
    years = RANDOM.randint(0, 40, ROWS)
    assert not on_leaks(tmp_path, years, years + RANDOM.randint(0, 2, ROWS), task="regression")
    assert not on_leaks(tmp_path, np.where(np.arange(ROWS) == ROWS - 2, "middle", NAME), np.where(CODE == 2, 1, 0))


@pytest.mark.filterwarnings("error")
def test_numbers_beyond_all_bounds(tmp_path):
    huge = np.append(PRICE[1:], 1.7e308)
    assert not on_leaks(tmp_path, PRICE, huge, normalise="none") and not on_leaks(
        tmp_path, huge, -PRICE, normalise="none"
    )


def test_one_row_apart_is_no_copy(tmp_path):
    data = np.where(np.arange(ROWS) < 4, "other", NAME)
    assert not on_leaks(tmp_path, NAME, data)
    assert not on_leaks(tmp_path, PRICE, np.where(np.arange(ROWS) < 4, 3.5, PRICE))


def notes_on(tmp_path, y, leak, said):
    lines = [f"{n},{a},{b}" for n, a, b in zip(NOISE, leak, y)]
    (tmp_path / "a.csv").write_text("\n".join(["noise,leak,y", *lines]) + "\n")
    return [note for note in load(tmp_path / "a.csv").notes if said in note]


@pytest.mark.parametrize(
    "scale",
    [
        np.log,
        lambda y: np.log10(y).round(2),
        lambda y: -np.sqrt(y),
        lambda y: 1 / y,
        np.round,
        lambda y: y.argsort().argsort(),
    ],
    ids=["logarithm", "logarithm rounded", "root", "inverse", "rounded", "power"],
)
def test_the_target_in_another_scale(tmp_path, scale):
    y = np.random.RandomState(0).permutation(np.geomspace(1, 300, ROWS)).round(6)
    assert len(on_leaks(tmp_path, y, scale(y))) == 1
    assert not on_leaks(tmp_path, y, np.where(np.arange(ROWS) < 4, scale(y)[::-1], scale(y)))


def test_finer_categories_are_named(tmp_path):
    """Each part determines the class, but not the other way round."""
    parts = [f"{name} {i % 2}" for i, name in enumerate(NAME)]
    (note,) = notes_on(tmp_path, NAME, parts, "determines")
    assert note == (
        "column 'leak' determines the target 'y', as each value has a single class; if it is not known when you "
        "predict, leave it out with drop=['leak']"
    )
    # A few rows apart, few rows in each, and hardly any rows of the other class.
    assert not notes_on(tmp_path, NAME, [*parts[1:5], *parts[4:]], "determines")
    assert not notes_on(tmp_path, NAME, [f"{n // 2}x" for n in range(ROWS)], "determines")
    rare = np.where(np.arange(ROWS) % 40 == 0, "yes", "no")
    assert not notes_on(tmp_path, rare, [f"{r} {i % 3}" for i, r in enumerate(rare)], "determines")


def test_numbers_that_tell_classes_apart_are_not_named(tmp_path):
    assert not notes_on(tmp_path, NAME, CODE * 10 + np.arange(ROWS) % 4, "target")


@pytest.mark.parametrize("value", ["2024-01-05", "moved", "3.5"])
def test_values_that_only_some_classes_have_are_named(tmp_path, value):
    """Such as the date of a cancellation, which nobody has who has not left."""
    left = np.where(np.arange(ROWS) % 5 == 0, "yes", "no")
    other = {"2024-01-05": "2024-02-05", "moved": "price", "3.5": "7"}[value]
    given = np.where(left == "yes", np.where(np.arange(ROWS) % 2, value, other), "")
    (note,) = notes_on(tmp_path, left, given, "depends")
    assert note.startswith("whether column 'leak' has a value depends on the target 'y' alone; if it is not known")
    # One row apart.
    assert not notes_on(tmp_path, left, [*given[:1], value, *given[2:]], "depends")
    assert not notes_on(tmp_path, left, ["", *given[1:]], "depends")


def test_rare_categories_are_not_named(tmp_path):
    # All rows but a few have one value in both.
    rare = np.where(np.arange(ROWS) % 40 == 0, "yes", "no")
    assert not on_leaks(tmp_path, rare, np.where(rare == "yes", "A", "B"))
    rare = np.where(np.arange(ROWS) % 40 == 0, 2.5, 0.5)
    assert not on_leaks(tmp_path, rare, 2 * rare)


def test_ids_dates_and_constants_are_not_named(tmp_path):
    count = np.arange(1, ROWS + 1)
    assert not on_leaks(tmp_path, count * 0.5, count)
    assert not on_leaks(tmp_path, count * 0.5, [f"C{i}" for i in count])
    assert not on_leaks(tmp_path, count * 0.5, np.datetime64("2024-01-01") + count)
    assert not on_leaks(tmp_path, CODE, np.array(["2024-01-01", "2024-01-02", "2024-01-03"])[CODE])
    assert not on_leaks(tmp_path, PRICE, np.full(ROWS, 3.5))
    assert not on_leaks(tmp_path, PRICE, np.array(["a", "b"])[np.arange(ROWS) % 2])


def test_few_rows_say_nothing(tmp_path):
    assert not on_leaks(tmp_path, PRICE[:30], PRICE[:30])
    assert not on_leaks(tmp_path, NAME[:30], CODE[:30])


def test_only_training_rows_are_looked_at(tmp_path):
    """A copy in the training rows alone is named, one in the others alone is not."""
    lines = [f"{n},{p}" for n, p in zip(NOISE, PRICE)]
    (tmp_path / "a.csv").write_text("\n".join(["noise,y", *lines]) + "\n")
    trained = np.isin(PRICE, load(tmp_path / "a.csv").train.y.numpy().round(2))
    assert 80 < trained.sum() < ROWS
    assert on_leaks(tmp_path, PRICE, np.where(trained, PRICE, 3.25))
    assert not on_leaks(tmp_path, PRICE, np.where(trained, NOISE, PRICE))


def test_several_are_named_in_one_sentence_and_left_out(tmp_path):
    lines = [f"{n},{p},{p / 2},{3 * p}" for n, p in zip(NOISE, PRICE)]
    (tmp_path / "a.csv").write_text("\n".join(["noise,y,half,thrice", *lines]) + "\n")
    said = "columns 'half', 'thrice' are exact functions of the target 'y'; "
    assert load(tmp_path / "a.csv", target="y", target_scale="linear").notes == (
        f"{said}leave out those that are not known when you predict with drop=['half', 'thrice']",
    )
    assert [column.name for column in load(tmp_path / "a.csv", target="y").schema.columns] == [
        "noise",
        "half",
        "thrice",
    ]
    assert load(tmp_path / "a.csv", target="y", drop=["half", "thrice"], target_scale="linear").notes == ()

"""Tables that people have: what is in the way is said at once, and a preparation mends it.

Preparations are compared with scikit-learn's transformers, fitted to the adversary's records.
"""

import json
import re
import shutil
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv as pcsv
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from typer.testing import CliRunner

from dpcanary.audits import own_preparation
from dpcanary.audits.own_audit_data import read_source
from dpcanary.audits.own_preparation import look_at_source, prepared_source
from dpcanary.audits.preflight import check_experiment
from dpcanary.audits.workflow_run import run_config
from dpcanary.cli import app
from dpcanary.data.dataset_settings import DatasetStage
from dpcanary.data.preparation import read_preparation
from dpcanary.data.record_source import Source
from dpcanary.data.records import Records, read_split
from dpcanary.data.sources import load_source
from dpcanary.data.splitting import SplitRows, split_rows
from dpcanary.data.table_columns import judged, judged_label, markers_among, numbers_of
from dpcanary.data.table_files import TableFile
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment
from scripts.prepare_dataset import main as prepare_dataset

ROWS, SEED, NUM_RECORDS = 240, 3, 101  # not a multiple of the classes


def nasty() -> pd.DataFrame:
    """A table of all kinds of columns; YAML would take the first one's name for false."""
    rng = np.random.default_rng(11)
    income = rng.normal(30.0, 9.0, ROWS).round(2)
    return pd.DataFrame({
        "no": rng.choice(["yes", "no", "null", "1.5", "a: #b"], ROWS),
        "patient_id": rng.permutation(ROWS) + 70_000,
        "visit": pd.date_range("2021-03-01", periods=ROWS).strftime("%d.%m.%Y"),
        "note": [f"seen by {name} twice" for name in rng.permutation(ROWS)],
        "town": rng.choice(["Leeds", "York", "Hull", None], ROWS, p=[0.5, 0.2, 0.2, 0.1]),
        "smoker": rng.choice([True, False], ROWS),
        "age": np.where(rng.random(ROWS) < 0.1, -999, rng.integers(18, 90, ROWS)),
        "visits": rng.poisson(3, ROWS),
        "income": np.where(rng.random(ROWS) < 0.1, np.nan, income),
        "site": "A",
        "diagnosis": rng.integers(0, 2, ROWS).astype(float) + 1,
    })  # fmt: skip


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    nasty().to_csv("mine.csv", index=False)
    return tmp_path / "mine.csv"


def prepared(path: Path, *, file: Path = Path("none.yaml"), **options: Any):
    options = {"num_records": NUM_RECORDS, "seed": SEED, "label_kind": "classes"} | options
    return prepared_source(str(path), label_column="diagnosis", path=file, **options)


def roles(num_records: int = NUM_RECORDS, *, balanced: bool = False) -> SplitRows:
    """The rows of each role, which follow from the labels alone."""
    labels = nasty()["diagnosis"].to_numpy(int) - 1
    source = Source("rows", Records(np.zeros((ROWS, 1)), labels))
    return split_rows(source, num_records=num_records, seed=SEED, balanced=balanced)


def twin(auxiliary: np.ndarray) -> np.ndarray:
    """The features, by scikit-learn: its transformers are fitted to the auxiliary rows."""
    table = nasty().astype({"smoker": float}).replace({"age": {-999: np.nan}})
    one_hot = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    filled = SimpleImputer(strategy="median", add_indicator=True)
    plain = SimpleImputer(strategy="median")
    parts = []
    for name, transformer in {
        "no": one_hot, "town": one_hot, "smoker": plain, "age": filled, "visits": plain,
        "income": filled,
    }.items():  # fmt: skip
        column = table[[name]]
        if name == "no":  # as pandas reads the file
            column = column.replace("null", np.nan)
        parts.append(transformer.fit(column.iloc[auxiliary]).transform(column))
        if transformer is one_hot:  # scikit-learn has a category of missing ones: the last
            assert np.isnan(transformer.categories_[0].tolist()[-1])
    return np.column_stack(parts)


def test_all_that_is_in_the_way_is_said_at_once(path):
    message = "cannot be used as it is; mend the file, or let `dpcanary audit --prepare` prep"
    with pytest.raises(InputError, match=message) as refused:
        read_source("mine.csv", label_column="diagnosis")
    lines = str(refused.value).splitlines()[2:]
    assert max(map(len, lines)) <= 80
    cells = [re.split(r" {3,}", line.strip()) for line in lines]
    assert [row[:3] for row in cells if len(row) == 4] == [
        ["column", "kind", "what is wrong"],
        ["diagnosis", "label", "not 0, 1, 2, ..."],
        ["no", "category", "4 categories"],
        ["patient_id", "identifier", "differs in all rows"],
        ["visit", "date", "dates"],
        ["note", "text", "240 texts"],
        ["town", "category", "3 categories"],
        ["age", "number", f"-999 in {(nasty()['age'] == -999).sum()} rows"],
        ["income", "number", f"{nasty()['income'].isna().sum()} missing"],
        ["site", "constant", "the same in all rows"],
    ]
    missing = nasty()["town"].isna().sum(), (nasty()["no"] == "null").sum()
    assert {f"{count} missing" for count in missing} <= {row[0] for row in cells}


def test_a_preparation_is_scikit_learns_fitted_to_the_adversarys_records(path):
    prepared_table = prepared(path)
    auxiliary = np.sort(roles().auxiliary)
    assert (len(auxiliary), len(roles().private)) == (69, NUM_RECORDS)
    np.testing.assert_allclose(
        prepared_table.records.training.features, twin(auxiliary), rtol=1e-12
    )
    np.testing.assert_array_equal(prepared_table.records.training.labels, nasty()["diagnosis"] - 1)
    assert prepared_table.records.class_names == ("1", "2")


@pytest.mark.parametrize("balanced", [False, True])
def test_private_records_change_neither_the_preparation_nor_other_records(path, balanced):
    """Whatever they hold, but labels by which a balanced split chooses them.

    What they hold is encoded, in numbers that are not vast.
    """
    num_records = NUM_RECORDS - balanced
    before = prepared(path, num_records=num_records)
    private = roles(num_records, balanced=balanced).private
    strange = {
        "no": "never seen", "patient_id": "x", "visit": "not a date", "note": np.nan,
        "town": "Atlantis", "smoker": "perhaps", "age": 1e200, "visits": "many", "income": np.inf,
        "site": "B",
    }  # fmt: skip
    table = nasty().astype(object)
    table.loc[private, [*strange]] = [*strange.values()]
    if not balanced:
        table.loc[private[:30], "diagnosis"] = 1.0
    table.to_csv(path, index=False)
    after = prepared(path, num_records=num_records)
    assert after.preparation == before.preparation
    others = np.setdiff1d(np.arange(ROWS), private)
    for part in ("features", "labels"):
        pair = [
            getattr(prepared_table.records.training, part)[others]
            for prepared_table in (before, after)
        ]
        np.testing.assert_array_equal(*pair)
    # A category that nobody else has is none of the known ones, and all else is missing.
    [encoded] = np.unique(after.records.training.features[private], axis=0)
    preparation = read_preparation_of(before)
    fills = {name: column.fill for name, column in preparation.columns.items()}
    assert encoded.tolist() == [
        *[0.0] * 4, 0.0, *[0.0] * 3, 0.0, fills["smoker"], fills["age"], 1.0, fills["visits"],
        fills["income"], 1.0,
    ]  # fmt: skip
    # What is printed is what the adversary's records tell.
    assert after.look.lines() == before.look.lines()


def test_a_missing_cell_changes_no_other_record_of_a_parquet_file(path):
    """In pandas, integers become floats if one of them is missing, and large ones other numbers."""
    table = nasty().astype({"visits": "Int64", "patient_id": "Int64"})
    table["patient_id"] += 2**53
    prepared_tables, private = [], roles().private
    for _ in range(2):
        table.to_parquet("mine.parquet")
        prepared_tables.append(prepared(Path("mine.parquet")))
        table.loc[private, ["visits", "patient_id"]] = pd.NA
    assert prepared_tables[0].preparation == prepared_tables[1].preparation
    others = np.setdiff1d(np.arange(ROWS), private)
    features, changed = (read.records.training.features for read in prepared_tables)
    np.testing.assert_array_equal(features[others], changed[others])
    assert (features[private] != changed[private]).any()


def read_preparation_of(prepared_table: Any):
    Path("how.yaml").write_text(prepared_table.preparation)
    return read_preparation(Path("how.yaml"))


def test_the_file_of_a_preparation_makes_the_same_records(path):
    prepared_table = prepared(path)
    preparation = read_preparation_of(prepared_table)
    assert preparation.columns["no"].categories == ("1.5", "a: #b", "no", "yes")
    keys = {"label_column": "diagnosis", "preparation": "how.yaml"}
    again = load_source("mine.csv", **keys)
    np.testing.assert_array_equal(again.training.features, prepared_table.records.training.features)
    np.testing.assert_array_equal(again.training.labels, prepared_table.records.training.labels)
    # What a person has changed stays, for as long as it is for the same records.
    fill = preparation.columns["income"].fill
    edited = prepared_table.preparation.replace(f"fill: {fill}", "fill: -7.5")
    assert edited != prepared_table.preparation
    Path("how.yaml").write_text(edited)
    kept = prepared(path, file=Path("how.yaml"))
    assert (kept.preparation, kept.look) == (None, None)
    filled = kept.records.training.features[:, -2] == -7.5
    np.testing.assert_array_equal(filled, nasty()["income"].isna())
    # It is not replaced by that of other records, and used where it says nothing of records.
    refused = [{"seed": SEED + 1}, {"num_records": 90}, {"label_kind": "numbers"}]
    for other in refused:
        with pytest.raises(InputError, match=r"^how\.yaml.* delete (it|this one).*, and run again"):
            prepared(path, file=Path("how.yaml"), **other)
    Path("how.yaml").write_text(re.sub("made_from.*\n", "", edited))
    for other in refused[:2]:
        again = prepared(path, file=Path("how.yaml"), **other).records
        np.testing.assert_array_equal(again.training.features, kept.records.training.features)


def test_a_dataset_of_the_workflow_is_prepared_and_standardised_by_the_same_records(path):
    Path("how.yaml").write_text(prepared(path).preparation)
    keys = {
        "source": "mine.csv", "label_column": "diagnosis", "preparation": "how.yaml",
        "num_records": NUM_RECORDS, "balanced": False, "num_test": 20,
    }  # fmt: skip
    stage = DatasetStage(**keys, seed=SEED)
    files = ["--files", "mine.csv", "how.yaml", "--output", "out.npz"]
    prepare_dataset(["--settings", stage.to_json(), *files])
    split, rows = read_split(Path("out.npz")), roles()
    auxiliary = rows.auxiliary
    features = twin(np.sort(auxiliary))
    scaled = StandardScaler().fit(features[auxiliary]).transform(features)
    np.testing.assert_allclose(split.private.features, scaled[rows.private], atol=1e-5)
    np.testing.assert_allclose(split.auxiliary.features, scaled[auxiliary], atol=1e-5)
    np.testing.assert_array_equal(split.private_rows, rows.private)
    # Its values must come from the records that the adversary knows, before anything runs, too.
    audit = {
        "dataset": "mine", "canary": "gradient", "sample_rate": 1.0, "num_steps": 2,
        "noise_multiplier": 1.0, "num_runs": 8,
    }  # fmt: skip
    config = {"experiment": "e", "delta": 1e-5, "seed": SEED, "audits": {"one": audit}}
    top = config | {"datasets": {"mine": keys | {"num_auxiliary": 30}}}
    with pytest.raises(InputError, match=r"datasets\.mine: .*made from other records than"):
        check_experiment(parse_experiment(top), device_is_here=True)
    written = Path("how.yaml").read_text()
    without = yaml.safe_load(written)
    del without["made_from"]
    Path("how.yaml").write_text(yaml.safe_dump(without))
    check_experiment(parse_experiment(top), device_is_here=True)
    # One that is not there is made, and one that is there is not touched.
    own_preparation.write_missing_preparations(parse_experiment(top).settings, Path())
    assert Path("how.yaml").read_text() == yaml.safe_dump(without)
    for changed, is_same in ((top, False), (config | {"datasets": {"mine": keys}}, True)):
        Path("how.yaml").unlink()
        own_preparation.write_missing_preparations(parse_experiment(changed).settings, Path())
        check_experiment(parse_experiment(changed), device_is_here=True)
        assert (Path("how.yaml").read_text() == written) == is_same


def test_every_run_writes_a_preparation_that_is_missing_unless_it_only_looks(monkeypatch, path):
    monkeypatch.setattr("dpcanary.audits.workflow_run._status", Mock(return_value=0))
    dataset = {"source": str(path), "label_column": "diagnosis", "preparation": "how.yaml"}
    audit = {"canary": "gradient", "sample_rate": 1.0, "noise_multiplier": 1.0, "num_runs": 8}
    config = {"experiment": "e", "delta": 1e-5, "datasets": {"mine": dataset | {"num_records": 60}}}
    config |= {"audits": {"a": audit | {"dataset": "mine", "num_steps": 2}}}
    Path("e.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(InputError, match=r"how\.yaml does not exist, .* unless it only looks"):
        run_config(Path("e.yaml"), targets=["list_audits"], options=["--dry-run"])
    run_config(Path("e.yaml"), targets=["list_audits"])
    assert "made_from" in Path("how.yaml").read_text()


def test_numbers_to_be_predicted_are_left_as_they_are(path, refuses):
    table = nasty().assign(diagnosis=np.linspace(-4.0, 11.0, ROWS))
    table.to_csv(path, index=False)
    refuses(r"(?s)mend what --prepare .* for regression: --loss", prepared, path)
    prepared_table = prepared(path, label_kind="numbers")
    labels = table["diagnosis"].astype(np.float32)
    np.testing.assert_array_equal(prepared_table.records.training.labels, labels)
    assert read_preparation_of(prepared_table).classes == ()
    load = partial(load_source, "mine.csv", label_column="diagnosis", preparation="how.yaml")
    refuses(r"are numbers, but they are taken as classes: give --loss squared_error", load)
    nasty().to_csv(path, index=False)
    Path("how.yaml").write_text(prepared(path, file=Path("other.yaml")).preparation)
    refuses(r"are classes, but they are taken as numbers: leave out", load, label_kind="numbers")


@pytest.mark.parametrize(("values", "kind", "what"), [
    ([1, 2, 3, "?", ""] * 20, "number", ["40 missing"]),
    ([*range(2, 12), "n.a."] * 10, "number", ["10 not numbers"]),
    ([*range(2, 6), "low", "high"] * 10, "category", ["6 categories"]),
    ([9, 17, 25, 9999, -99] * 5, "number", ["-99 in 5 rows", "9999 in 5 rows"]),
    (np.arange(50) * 1000, "number", ["differs in all rows"]),
    (np.arange(50) + 1000, "identifier", ["differs in all rows"]),
    (np.arange(50) / 7, "number", []),
    ([f"a{row}" for row in range(50)], "identifier", ["differs in all rows"]),
    (["2020-01-05 10:11", "2021-11-30 23:59", None] * 9, "date", ["dates"]),
    (pd.date_range("2020-01-01", periods=30), "date", ["dates"]),
    ([None] * 30, "constant", ["empty"]),
    (["1-3", "4-6", "7-9", "10-12"] * 20, "category", ["4 categories"]),
    (["1.2.3", "1.2.4"] * 20, "category", ["2 categories"]),
    (["2019-2020", "2020-2021"] * 20, "category", ["2 categories"]),
    (["03/2020", "2021-04"] * 20, "date", ["dates"]),
    ([f"{day}.3.21" for day in range(1, 30)] * 3, "date", ["dates"]),
    (["?"] * 97 + ["[0-25)", "[75-100)", "[75-100)"], "category", ["2 categories", "97 missing"]),
    (np.random.default_rng(0).permutation(900)[:50], "number", ["differs in all rows"]),
    (np.random.default_rng(0).permutation(60)[:50], "identifier", ["differs in all rows"]),
])  # fmt: skip
def test_what_a_column_holds(values, kind, what):
    judgement = judged("measured", pd.Series(values))
    assert (judgement.column.kind, [remark.what for remark in judgement.remarks]) == (kind, what)


@pytest.mark.parametrize(("values", "markers"), [
    ([18, 90, 999], [999]), ([18, 90, 99], []), ([0, 1, -99], [-99]), ([2e4, 9999, 1.5e5], []),
    ([-20.5, 31.2, -999, 99999], [-999, 99999]), ([0, 700, 999], []), ([5, 9999], []),
])  # fmt: skip
def test_markers_of_missing_values_lie_far_from_all_others(values, markers):
    assert markers_among(np.array(values * 2)) == markers


@pytest.mark.parametrize(("name", "kind"), [
    ("ID", "identifier"), ("patientId", "identifier"), ("case nr", "identifier"),
    ("record_uuid", "identifier"), ("paid", "number"), ("volcano", "number"), ("income", "number"),
    ("heat index", "number"), ("no", "number"),
])  # fmt: skip
def test_whole_numbers_far_apart_are_identifiers_by_their_name(name, kind):
    assert judged(name, pd.Series(np.arange(50) * 1000 + 7)).column.kind == kind


def test_many_categories_keep_the_most_frequent():
    texts = [f"c{index:02}" for index in range(30) for _ in range(40 - index)]
    column = judged("code", pd.Series(texts)).column
    assert column.categories == tuple(f"c{index:02}" for index in range(20))


def test_warnings_of_a_table_that_can_be_used(tmp_path, caplog):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(0, 90, 300), "visits": np.arange(300) % 14})
    table.loc[::50, "age"] = -999
    table.to_csv(tmp_path / "mine.csv", index=False)
    load_source(str(tmp_path / "mine.csv"), label_column="visits")
    of_age, of_visits = caplog.messages
    caplog.clear()
    load_source(str(tmp_path / "mine.csv"), label_column="age", label_kind="numbers")
    assert [text.partition("column")[2] for text in caplog.messages] == [
        " 'age': -999 in 6 rows: kept; remove these rows if missing"
    ]
    assert "column 'age': -999 in 6 rows, used as it is (--prepare: the median, and a 0/1" in of_age
    assert (
        "column 'visits': 14 whole numbers: classes; if they are counts or amounts, " in of_visits
    )
    # As --prepare judges them, which would refuse these as classes.
    caplog.clear()
    pd.DataFrame({"price": np.arange(41) % 21, "size": 1.0}).to_csv(tmp_path / "few.csv")
    load_source(str(tmp_path / "few.csv"), label_column="price")
    assert caplog.messages[-1].endswith("21 numbers: for regression: --loss squared_error")
    [remark] = judged_label(pd.Series(np.arange(41) % 21), has_classes=True)[1]
    assert (remark.is_open, remark.what) == (True, "21 numbers")
    [remark] = judged_label(pd.Series(np.arange(42) % 21), has_classes=True)[1]
    assert (remark.is_open, remark.what) == (False, "21 whole numbers")


def test_the_index_of_a_text_file_is_named_and_a_table_of_one_feature_is_kept(tmp_path, caplog):
    table = pd.DataFrame({"age": np.arange(300.0) / 7, "kind": np.arange(300) % 2})
    table.to_csv(tmp_path / "mine.csv")
    read = load_source(str(tmp_path / "mine.csv"), label_column="kind")
    assert read.training.features.shape == (300, 1)
    [text] = caplog.messages
    assert "is left out: the first column, without a name" in text
    table.to_csv(tmp_path / "mine.csv", columns=["kind"])
    read = load_source(str(tmp_path / "mine.csv"), label_column="kind")
    assert read.training.features.tolist() == [[number] for number in range(300)]


def test_grouped_thousands_and_measured_labels_are_left_to_the_user(tmp_path, monkeypatch, refuses):
    monkeypatch.chdir(tmp_path)
    prices = 1000 * (np.arange(60) % 50) + 100_000
    table = pd.DataFrame({"income": [f"{p:,}" for p in prices], "diagnosis": prices + 500})
    table.to_csv("mine.csv", index=False)
    label = r"diagnosis +label +\d+ numbers +left to you: for regression: --l"
    with pytest.raises(InputError, match=label) as error:
        read_source("mine.csv", label_column="diagnosis")
    assert re.search(r"income +text +thousands are grouped +left to you: wri", str(error.value))
    refuses(label, prepared, Path("mine.csv"), num_records=30)


def write_parts(table: pd.DataFrame) -> None:
    Path("a/later").mkdir(parents=True)
    table[:100].to_parquet("a/1.parquet", index=False)
    table[100:].to_parquet("a/later/2.parquet", index=False)


def with_index(separator: str, name: str) -> Callable[[pd.DataFrame], None]:
    """Writes a text file with the index that pandas saves by default."""
    path = "a.tsv" if separator == "\t" else "a.csv"
    return lambda table: table.to_csv(path, sep=separator, index_label=name)


SAME = {
    "index": with_index(",", ""),
    "index in tabs": with_index("\t", "Unnamed: 0"),
    "gz": lambda table: table.to_csv("a.csv.gz", index=False),
    "semicolons": lambda table: table.to_csv("a.csv", sep=";", decimal=",", index=False),
    "tabs": lambda table: table.to_csv("a.tsv", sep="\t", index=False),
    "marked": lambda table: table.to_csv("a.csv", sep="|", encoding="utf-8-sig", index=False),
    "carriage returns": lambda table: table.to_csv("a.csv", lineterminator="\r", index=False),
    "parquet": lambda table: table.to_parquet("a.parquet"),
    "folder": write_parts,
}


@pytest.mark.parametrize("form", SAME)
def test_a_table_is_the_same_in_each_form(path, form):
    """Prepared or as it is."""
    plain = nasty()[["smoker", "visits", "diagnosis"]]
    plain = plain.assign(measured=np.arange(ROWS) / 8, diagnosis=plain["diagnosis"] - 1)
    to_prepare = nasty().replace({"no": {"null": "nil"}})  # missing in a file of text alone
    for table, read in (
        (plain, lambda source: read_source(source, label_column="diagnosis").training),
        (to_prepare, lambda source: prepared(Path(source)).records.training),
    ):
        shutil.rmtree("a", ignore_errors=True)
        table.to_csv(path, index=False)
        SAME[form](table)
        [written] = Path().glob("a*")
        expected, records = read("mine.csv"), read(str(written))
        np.testing.assert_allclose(records.features, expected.features, rtol=1e-12)
        np.testing.assert_array_equal(records.labels, expected.labels)


@pytest.mark.parametrize("delimiter", [";", "|"])
def test_numbers_with_both_marks_have_their_thousands_grouped_by_the_first(delimiter, tmp_path):
    sizes = ["4.996,94", "1,234,567.5", "-12.345,6", "7.250.000,0"]
    lines = [f"{size}{delimiter}{row % 2}" for row, size in enumerate(sizes)]
    (tmp_path / "mine.csv").write_text("\n".join([f"size{delimiter}label", *lines]))
    table = TableFile(tmp_path / "mine.csv", "label").as_written()
    expected = [4_996.94, 1_234_567.5, -12_345.6, 7_250_000.0]
    assert numbers_of(table["size"]).tolist() == expected


def test_commas_are_decimal_points_between_semicolons_alone(tmp_path, monkeypatch, caplog, refuses):
    monkeypatch.chdir(tmp_path)

    def write(*lines: str) -> None:
        Path("mine.csv").write_text("\n".join(lines))

    for delimiter in "\t|":
        incomes = ["1,234", "999", "12,345", "850"] * 2
        rows = [f"{income}{delimiter}{row % 2}" for row, income in enumerate(incomes)]
        write(f"income{delimiter}label", *rows)
        refuses(r"income +category +4 categories", read_source, "mine.csv")
    write("income;size;label", *["1,234;2,5;0", "9,1;3,125;1"] * 2)
    assert read_source("mine.csv").training.features[0].tolist() == [1.234, 2.5]
    assert caplog.messages == []
    for first, marks in (("1,234;2,5;0", "commas"), ("1.234;2,5;0", "points")):
        write("income;size;label", *[first, "999;3;1"] * 2)
        for read in (read_source, look_at_source):
            read("mine.csv", label_column="label", label_kind="classes")
            [message] = caplog.messages
            assert f"column 'income': {marks} are read as decimal points; if they gr" in message
            caplog.clear()
    # A table that is refused is not read again for what is said of its columns.
    write("income;size;label", *["1,234;2,5;0", "999;;1"] * 2)
    parsed = Mock(wraps=pcsv.read_csv)
    monkeypatch.setattr(pcsv, "read_csv", parsed)
    refuses(r"size +number +2 missing", read_source, "mine.csv")
    assert (len(caplog.messages), parsed.call_count) == (1, 2)
    # A column with points and commas is not one of numbers.
    write("income;size;label", *["1,5;2,5;0", "2.5;3,5;1"] * 20)
    mixed = r"as it is: cells have decimal points .* in income; write"
    check = ["check", "--features", "mine.csv"]
    refuses(mixed, read_source, "mine.csv")
    refuses(mixed, CliRunner().invoke, app, check, catch_exceptions=False)
    write("income;size;label", *["1,5;2,5;0", "2,5;3,5;1"] * 20)
    assert "mine.csv can be used as it is." in CliRunner().invoke(app, check).output


@pytest.mark.parametrize(("labels", "classes"), [
    (["123456789012345678", "123456789012345679"], ("123456789012345678", "123456789012345679")),
    (["01", "1"], ("01", "1")), (["1e1", "10"], ("10", "1e1")), (["10.0", "2"], ("2", "10")),
    (["1", "true"], ("1", "true")), ([" cat", "dog"], ("cat", "dog")),
])  # fmt: skip
def test_labels_that_differ_are_different_classes(path, labels, classes):
    pd.DataFrame({"a": np.arange(40) % 7, "diagnosis": labels * 20}).to_csv(path, index=False)
    source = prepared(path, num_records=20).records
    assert source.class_names == classes
    assert np.ptp(source.training.labels.reshape(20, 2), axis=0).tolist() == [0, 0]


def test_labels_that_are_missing_or_padded_are_so_in_plain_tables_too(tmp_path, refuses):
    path, parquet = tmp_path / "mine.csv", tmp_path / "mine.parquet"
    path.write_text("a,pet\n1,cat\n2, cat\n3,dog\n4,dog\n")
    pd.read_csv(path).to_parquet(parquet)
    for file in (path, parquet):
        pets = read_source(str(file), label_column="pet")
        assert (pets.training.labels.tolist(), pets.class_names) == ([0, 0, 1, 1], ("cat", "dog"))
    path.write_text("a,label\n1,cat\n2,?\n3,dog\n4,-\n")
    refuses(r"2 missing +left to you: remove these rows", read_source, str(path))


def test_types_of_parquet_files(tmp_path, monkeypatch, refuses):
    """Decimal fractions and dictionaries are numbers; bytes, and columns in names, are refused."""
    monkeypatch.chdir(tmp_path)
    labels = [0, 1] * 4
    table = pd.DataFrame({"a": np.arange(8) / 4, "b": np.arange(8) % 3, "label": labels})
    parts = {
        "a": pa.array([Decimal(row) / 4 for row in range(8)], pa.decimal128(9, 2)),
        "b": pa.array(table["b"]).dictionary_encode(),
        "label": pa.array(labels).dictionary_encode(),
    }
    pq.write_table(pa.table(parts), "mine.parquet")
    records = read_source("mine.parquet").training
    np.testing.assert_array_equal(records.features, table[["a", "b"]])
    np.testing.assert_array_equal(records.labels, labels)
    pq.write_table(pa.table({**parts, "b": [b"x"] * 8}), "mine.parquet")
    refuses("column 'b' holds bytes; drop it", read_source, "mine.parquet")
    table.to_parquet("years", partition_cols=["b"])
    refuses("years: names of its folders hold the values of a col", read_source, "years/")


def test_a_late_value_of_another_type_does_not_spoil_a_column(tmp_path):
    lines = ["a,label", *["1,0", "2,1"] * 300_000, "2.5,1"]
    (tmp_path / "mine.csv").write_text("\n".join(lines))
    assert load_source(str(tmp_path / "mine.csv")).training.features[-1, 0] == 2.5


@pytest.mark.parametrize("kind", [bool, np.float32, np.uint8])
def test_arrays_have_the_names_and_types_of_other_libraries(tmp_path, kind):
    path, numbers = tmp_path / "mine.npz", np.random.default_rng(0).normal(size=(9, 2))
    classes = np.array([0, 1, 1] * 3)
    test = {"X_test": numbers[:2] + 1, "y_test": classes[:2]}
    for features, labels in (("X", "y"), ("x_train", "y_train")):
        np.savez(path, **{features: numbers, labels: classes.astype(kind)}, **test)
        source = load_source(str(path))
        np.testing.assert_array_equal(source.training.features, numbers)
        np.testing.assert_array_equal(source.training.labels, classes)
        assert source.training.labels.dtype == np.int64
        np.testing.assert_array_equal(source.test.features, test["X_test"])


def images(folder: str, *, mode: str = "RGB", sizes: tuple[int, ...] = (5,)) -> np.ndarray:
    """Writes two images of each class; their pixels in the order of their paths, if all agree."""
    rng, written = np.random.default_rng(4), []
    for name in ("cats", "dogs"):
        Path(folder, name).mkdir(parents=True)
        for number in range(2):
            shape = (sizes[number % len(sizes)], 4, 3)[: 3 if mode == "RGB" else 2]
            written.append(rng.integers(0, 256, shape, dtype=np.uint8))
            Image.fromarray(written[-1]).save(Path(folder, name, f"{number}.png"))
    return np.stack(written) if len(sizes) == 1 else np.zeros(0)


def test_a_folder_of_images(tmp_path, monkeypatch, caplog, refuses):
    monkeypatch.chdir(tmp_path)
    pixels = images("photos")
    Path("photos/cats/.DS_Store").touch()
    source = read_source("photos")
    np.testing.assert_array_equal(source.training.features, pixels.transpose(0, 3, 1, 2))
    assert (source.training.labels.tolist(), source.class_names) == ([0, 0, 1, 1], ("cats", "dogs"))
    assert (source.kind, source.test, caplog.messages) == ("images", None, [])
    Path("photos/cats/readme.txt").touch()
    read_source("photos/")
    assert caplog.messages == ["photos: files left out, as they are not images in a class: 1"]
    images("mixed", sizes=(5, 9))
    refuses(r"2 sizes, such as 4 x 5 \(2\), 4 x 9 \(2\); set image_si", read_source, "mixed")
    assert read_source("mixed", image_size=6).training.features.shape == (4, 3, 6, 6)
    Path("photos/dogs/1.png").write_bytes(Path("photos/dogs/1.png").read_bytes()[:60])
    refuses(r"photos/dogs/1\.png cannot be read whole", read_source, "photos")
    Path("empty").mkdir()
    refuses("empty holds no images of two classes: it must have a folder", read_source, "empty")
    refuses("absent does not exist", read_source, "absent/")
    refuses("labels of images in folders are classes", read_source, "photos", label_kind="numbers")
    refuses("photos is not a table: only a table", read_source, "photos", preparation="how.yaml")
    np.savez("x.npz", features=np.eye(4), labels=[0, 1, 0, 1])
    for named in ("photos", "x.npz", "digits"):
        refuses("a table: label_column is for one; drop", read_source, named, label_column="y")


@pytest.mark.parametrize(("folders", "message"), [
    (["train", "val"], None), (["Training", "test"], None),
    (["train", "test", "val"], "folders test, train, val, two are the same part"),
    (["train", "training"], "folders train, training, two are the same part"),
    (["train", "test", "extra"], r"folders of parts \(test, train\) beside others \(extra\)"),
])  # fmt: skip
def test_folders_of_parts(tmp_path, folders, message, caplog, refuses):
    parts = [images(str(tmp_path / folder), mode="L")[:, None] for folder in folders]
    Image.new("RGB", (4, 5)).save(tmp_path / "sample.png")
    if message:
        refuses(message, read_source, str(tmp_path))
        return
    source = read_source(str(tmp_path))
    assert source.class_names == ("cats", "dogs")
    np.testing.assert_array_equal(source.training.features, parts[0])
    np.testing.assert_array_equal(source.test.features, parts[1])
    assert "files left out, as they are not images in a class: 1" in caplog.text


@pytest.mark.parametrize(("mode", "suffix", "channels"), [
    ("1", "png", 1), ("LA", "png", 1), ("P", "png", 3), ("RGBA", "png", 3), ("CMYK", "jpg", 3),
    ("I;16", "png", None), ("I", "tiff", None), ("F", "tiff", None),
])  # fmt: skip
def test_pixels_are_bytes_or_refused(tmp_path, mode, suffix, channels, refuses):
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        source = Image.new("L" if mode == "LA" else "RGB" if channels else "L", (4, 5), 100)
        if mode == "I;16":
            source = Image.fromarray(np.full((5, 4), 4369, np.uint16))
        source.convert(mode).save(tmp_path / name / f"1.{suffix}")
    if channels is None:
        message = rf"1\.{suffix} has the mode {mode[0]}.*: its pixels"
        refuses(message, read_source, str(tmp_path))
    else:
        assert read_source(str(tmp_path)).training.features.shape == (2, channels, 5, 4)


def test_commands_say_what_is_in_the_way_and_leave_nothing_behind(path, refuses):
    run = CliRunner()
    check = ["check", "--features", "mine.csv", "--label-column"]
    shown = run.invoke(app, [*check, "diagnosis"], catch_exceptions=False)
    assert (shown.exit_code, max(map(len, shown.output.splitlines())) <= 80) == (3, True)
    assert re.search(r"\nsmoker +number +- +as it is\n", shown.output)
    content = json.loads(run.invoke(app, [*check, "diagnosis", "--json"]).stdout)
    assert content["passes"] is False
    assert {row["column"] for row in content["columns"]} == {*nasty().columns}
    usable = nasty()[["visits", "smoker"]].assign(label=np.arange(ROWS) % 3)
    usable.to_csv("usable.csv", index=False)
    assert run.invoke(app, ["check", "--features", "usable.csv"]).exit_code == 0
    usable.assign(label=np.arange(ROWS) / 7).to_csv("prices.csv", index=False)
    verdicts = (
        (3, "labels that are no classes: for regression: --loss"),
        (0, "can be used as it is"),
    )
    for loss, (status, verdict) in zip(([], ["--loss", "squared_error"]), verdicts, strict=True):
        result = run.invoke(app, ["check", "--features", "prices.csv", *loss])
        assert (result.exit_code, verdict in " ".join(result.output.split())) == (status, True)
    usable.assign(label=3 * np.arange(ROWS)).to_csv("amounts.csv", index=False)
    amounts = run.invoke(app, ["check", "--features", "amounts.csv"])
    verdict = "mend the file, name another column, or for regression: --loss squared_error."
    assert (amounts.exit_code, verdict in " ".join(amounts.output.split())) == (3, True)
    audit = ["audit", "--delta", "1e-5", "--num-steps", "2", "--prepare", "--features"]
    for wrong, message in [
        ("mine.csv --label-column income", "mend what --prepare leaves to you"),
        ("digits", "digits is not a table, so there is nothing to prepare: drop --prepare"),
        ("mine.csv --label-column diagnosis --num-records 239", "num_records is 239"),
    ]:
        refuses(message, run.invoke, app, [*audit, *wrong.split()], catch_exceptions=False)
    assert not Path("results").exists()


@pytest.mark.parametrize(("change", "message"), [
    ("{", "how.yaml is not a preparation"),
    ("columns: {income: {kind: number, fill: .nan}}", "columns.income.fill: Input should be"),
    ("columns: {income: {kind: number, fill: 1.e+300}}", "columns.income.fill: Input should be"),
    ("columns: {}\nclasses: [x, x, y]", "classes: Value error, a value is there twice"),
    ("classes: ['1', '2']\ncolumns: {town: {kind: text}}", "column age, income, no, note, pat"),
])  # fmt: skip
def test_preparations_that_are_wrong_are_named(path, change, message, refuses):
    Path("how.yaml").write_text(change)
    refuses(message, load_source, "mine.csv", label_column="diagnosis", preparation="how.yaml")


def test_a_column_can_be_dropped_by_its_kind_alone(path):
    written = prepared(path).preparation
    changed = re.sub(r"(  town:\s+\{?\s*kind: )category", r"\1text", written)
    assert changed != written
    Path("how.yaml").write_text(changed)
    whole, reduced = (
        prepared(path, file=Path(file)).records.training.features for file in ("none", "how.yaml")
    )
    np.testing.assert_array_equal(reduced, np.delete(whole, [5, 6, 7, 8], axis=1))


def test_a_label_that_the_adversary_does_not_know_is_named(path, refuses):
    private, table = roles().private, nasty()
    table.loc[private[:2], "diagnosis"] = 5
    table.to_csv(path, index=False)
    refuses(rf"2 records have a label .* record {min(private[:2])} ", prepared, path)


def test_a_look_at_many_columns_is_short(tmp_path):
    names = [f"column_with_a_long_name_{index}" for index in range(90)]
    table = pd.DataFrame(dict.fromkeys(names, ["a", "b"] * 9))
    table.assign(label=[0, 1] * 9).to_csv(tmp_path / "mine.csv", index=False)
    look = look_at_source(str(tmp_path / "mine.csv"), label_column="label", label_kind="classes")
    lines = look.lines()
    assert (len(lines), lines[-1], max(map(len, lines)) <= 80) == (42, "and 50 more", True)


def test_a_prepared_table_is_read_to_its_max_records(path, refuses):
    """Whatever stands behind them."""
    Path("how.yaml").write_text(prepared(path).preparation)
    load = partial(load_source, "mine.csv", label_column="diagnosis", preparation="how.yaml")
    whole = load().training
    pd.concat([nasty(), nasty()[:2].assign(diagnosis=5)]).to_csv(path, index=False)
    np.testing.assert_array_equal(load(max_records=ROWS).training.features, whole.features)
    refuses("2 records have a label .*: delete the preparation if it was made from other", load)

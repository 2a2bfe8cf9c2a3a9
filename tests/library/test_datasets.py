"""Sources, a user's own files, and splits; each source is read from its official form.

The environment variable DPCANARY_DATA names a folder with `cifar10`, `sst2` and
`california_housing`; without it, the test on real files is skipped.
"""

import io
import os
import re
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpcanary.core.files import write_arrays
from dpcanary.data.dataset_settings import SourceStage
from dpcanary.data.public_datasets import purchase100_synthetic
from dpcanary.data.record_source import KNOWN_SOURCES, Source
from dpcanary.data.records import Records, Split
from dpcanary.data.sources import load_records, load_source
from dpcanary.data.splitting import split_records
from dpcanary.errors import InputError

DATA = Path(os.environ.get("DPCANARY_DATA", ""))
real = pytest.mark.skipif("DPCANARY_DATA" not in os.environ, reason="needs DPCANARY_DATA")


def tar(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in {"folder": None, **members}.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            member.size = len(content or b"")
            archive.addfile(member, io.BytesIO(content or b""))
    return file.getvalue()


def zipped(members: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def zipped_arrays(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


# CIFAR-10: six batches of four images, with labels in front of their bytes, shape (6, 4, 3073)
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 3073), dtype=np.uint8)
PIXELS[:, :, 0] = np.arange(24).reshape(6, 4) % 10
IMAGES = PIXELS[:, :, 1:].reshape(-1, 3, 32, 32)


def cifar10(changed: Mapping[str, bytes] | None = None) -> bytes:
    # The batches are not in order in the official archive either.
    names = [*(f"data_batch_{index}.bin" for index in (1, 4, 3, 2, 5)), "test_batch.bin"]
    batches = zip(names, (0, 3, 2, 1, 4, 5), strict=True)
    members = {name: PIXELS[batch].tobytes() for name, batch in batches} | dict(changed or {})
    prefixed = {f"cifar-10-batches-bin/{name}": content for name, content in members.items()}
    return tar(prefixed | {"cifar-10-batches-bin/readme.html": b"<html>"})


TRAIN = 'sentence\tlabel\n"a fine film \t1\nno \u2028wit , caf\u00e9\t0\ndull\t0\n'
SENTENCES = ['"a fine film', "no \u2028wit , caf\u00e9", "dull"]


def sst2(train: str = TRAIN) -> bytes:
    members = {"SST-2/": "", "SST-2/train.tsv": train, "SST-2/original/README.txt": ""}
    return zipped(members | {"SST-2/dev.tsv": "sentence\tlabel\nmoving\t1\n"})


# California Housing: the first rows of the real file
COLUMNS = "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households"
COLUMNS += ",median_income,median_house_value"
HOUSING = (
    "-122.23,37.88,41.0,880.0,129.0,322.0,126.0,8.3252,452600.0\n"
    "-122.22,37.86,21.0,7099.0,1106.0,2401.0,1138.0,8.3014,358500.0\n"
    "-122.24,37.85,52.0,1467.0,190.0,496.0,177.0,7.2574,352100.0\n"
)
# A file as in Kaggle's form, with a row that lacks its bedrooms.
FIRST, *OTHERS = HOUSING.splitlines()
LINES = [
    f"ocean_proximity,{COLUMNS.replace('housing_median_age', 'housingMedianAge')}",
    f"NEAR BAY,{FIRST}",
    *(f"INLAND,{line}" for line in ("-122.0,37.0,2.0,3.0,,5.0,6.0,7.0,8.0", *OTHERS)),
]
# As scikit-learn's fetch_california_housing has them.
HOUSES = [
    [8.3252, 41.0, 880 / 126, 129 / 126, 322.0, 322 / 126, 37.88, -122.23],
    [8.3014, 21.0, 7099 / 1138, 1106 / 1138, 2401.0, 2401 / 1138, 37.86, -122.22],
    [7.2574, 52.0, 1467 / 177, 190 / 177, 496.0, 496 / 177, 37.85, -122.24],
]


def housing(text: str = HOUSING) -> bytes:
    members = {"cal_housing.domain": b"longitude: continuous.", "cal_housing.data": text.encode()}
    return tar({f"CaliforniaHousing/{name}": content for name, content in members.items()})


PURCHASES = purchase100_synthetic(num_records=70, seed=0).training


def purchases(changed: Mapping[int, str] | None = None, end: str = "\n") -> bytes:
    pairs = zip(PURCHASES.labels + 1, PURCHASES.features, strict=True)
    lines = [f"{label},{','.join(map(str, bits))}" for label, bits in pairs]
    for line, text in (changed or {}).items():
        lines[line - 1] = text
    return "".join(f"{line}{end}" for line in lines).encode("latin-1")


class Form(NamedTuple):
    """A file of a source, and what is in it: features, labels and features of the test part."""

    source: str
    file: str
    content: bytes
    features: Any
    labels: Any
    test: Any = None


TABLES = (
    "label\tsentence\r\n1\tgood\r\n0\tbad", "\ufefflabel\tcontent\n1\tgood\n0\tbad\n\n",
    "content\tlabel\n good\t1\nbad \t0\n", "good\t1\nbad\t0\n", "1\tgood\n0\tbad\n",
)  # fmt: skip
TENS = np.arange(24) % 10
TRAINING = {"images": IMAGES[:4].transpose(0, 2, 3, 1), "labels": PIXELS[0, :, 0]}
BOUGHT = PURCHASES.features, PURCHASES.labels
FORMS = [
    Form("cifar10", "cifar-10-binary.tar.gz", cifar10(), IMAGES[:20], TENS[:20], IMAGES[20:]),
    Form("cifar10", "train.npz", zipped_arrays(**TRAINING), IMAGES[:4], TENS[:4]),
    Form("sst2", "SST-2.zip", sst2(), SENTENCES, [1, 0, 0], ["moving"]),
    *(Form("sst2", "train.tsv", text.encode(), ["good", "bad"], [1, 0]) for text in TABLES),
    # The median is not above itself.
    Form("california_housing", "cal_housing.tgz", housing(), HOUSES, [1, 0, 0]),
    Form("california_housing", "housing.csv", "\r\n".join(LINES).encode(), HOUSES, [1, 0, 0]),
    Form("purchase100", "purchase.csv", purchases(), *BOUGHT),
    Form("purchase100", "purchase.csv", purchases(end="\r\n"), *BOUGHT),
    Form("purchase100", "purchase.tgz", tar({"._a": b"x", "data": purchases()}), *BOUGHT),
]


def filled(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


GENERATED = [name for name, source in KNOWN_SOURCES.items() if source.is_generated]


def test_every_source_that_is_read_has_its_forms():
    assert {form.source for form in FORMS} == KNOWN_SOURCES.keys() - GENERATED


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.file)
def test_a_source_is_read_from_its_forms_and_from_no_other_file(form, tmp_path, caplog, refuses):
    path = filled(tmp_path / form.file, form.content)
    source, entry = load_source(form.source, files=[path]), KNOWN_SOURCES[form.source]
    parts = [(source.training.features, form.features), (source.training.labels, form.labels)]
    parts += [(source.test.features, form.test)] if form.test is not None else []
    for part, expected in parts:
        if source.kind == "texts":
            assert [*part] == [*expected]
        else:
            np.testing.assert_allclose(part, expected, rtol=1e-12)
            assert source.training.features.shape[1:] == entry.shape
    # The jobs of a config are planned from what is known before a source is read.
    assert source.num_classes <= entry.num_classes
    assert (source.test is None) == (form.test is None)
    assert source.test is None or entry.num_test is not None
    assert (source.training.labels.dtype, source.synthetic) == (np.int64, False)
    if form.file == "housing.csv":
        assert "1 rows without total_bedrooms are left out" in caplog.text
    for content in (Path(__file__).read_bytes(), b"", b"\xff\xfe\x00"):
        refuses(path.name, load_source, form.source, files=[filled(path, content)])
    path.unlink()
    refuses(f"{path} does not exist", load_source, form.source, files=[path])


def test_details_of_forms(tmp_path, monkeypatch, refuses):
    official, arrays = (filled(tmp_path / form.file, form.content) for form in FORMS[:2])
    source = load_source("cifar10", files=[official])
    assert (source.kind, source.training.features.dtype) == ("images", np.uint8)
    assert source.class_names[6] == "frog"
    with_test = load_source("cifar10", files=[arrays, arrays], num_test=1)
    np.testing.assert_array_equal(with_test.test.features, IMAGES[:1])
    texts = load_source("sst2", files=[filled(tmp_path / "SST-2.zip", sst2())])
    assert (texts.class_names, texts.test.labels.tolist()) == (("negative", "positive"), [1])
    refuses("needs an encoder", split_records, texts, num_records=2, seed=0)
    # Purchases are read in blocks; and each group has its class.
    monkeypatch.setattr("dpcanary.data.public_datasets._BLOCK_BYTES", 4000)
    path = filled(tmp_path / "purchase.csv", purchases())
    read = load_source("purchase100", files=[path])
    np.testing.assert_array_equal(read.training.features, PURCHASES.features)
    path = filled(tmp_path / "purchase.csv", purchases({70: "101" + BITS}))
    with pytest.raises(InputError, match="line 70: the label must be 1 to 100, not '101'"):
        load_source("purchase100", files=[path])
    path.write_text("".join(f"{label}{BITS}\n" for label in range(100, 0, -1)))
    read = load_source("purchase100", files=[path])
    assert read.training.labels.tolist() == [*range(99, -1, -1)]


def wrong_images(**changes: Any) -> bytes:
    arrays = {"images": np.zeros((3, 32, 32, 3), np.uint8), "labels": np.arange(3)}
    return zipped_arrays(**arrays | changes)


OTHER_LABEL = cifar10({"data_batch_4.bin": PIXELS[3].tobytes() + b"\x0b" + bytes(3072)})
WRONG_FILES = [
    ("cifar10", "a.tgz", tar({"a": b""}), "has no member data_batch_1.bin: it is not"),
    ("cifar10", "a.tgz", OTHER_LABEL, "data_batch_4.bin: record 4 has label 11; CIFAR-10's"),
    ("cifar10", "a.tgz", cifar10({"data_batch_1.bin": bytes(3072)}), "no multiple of 3073"),
    ("cifar10", "a.npz", zipped_arrays(images=TRAINING["images"]), "has no array labels"),
    ("cifar10", "a.npz", wrong_images(images=IMAGES[:3]), "uint8 of shape (3, 3, 32, 32)"),
    ("cifar10", "a.npz", wrong_images(images=np.zeros((3, 32, 32, 3))), "not float64"),
    ("cifar10", "a.npz", wrong_images(labels=[0, 10, 1]), "record 1 has label 10"),
    ("sst2", "a.tsv", "label\tsentence\n1\tgood\n0\tbad\tvery\n", "line 3 has 3 columns"),
    ("sst2", "a.tsv", "phrase\tmood\ngood\t1\nbad\t0\n", "line 1: the label must be 0 or 1"),
    ("sst2", "a.tsv", "label\tsentence\n1\t \n", "line 2: the sentence is empty"),
    ("sst2", "a.tsv", "label\tsentence\n", "there are no records"),
    ("sst2", "a.tsv", b"good\xff\t1\n", "is not UTF-8 text"),
    ("sst2", "a.zip", zipped({"train.tsv": TRAIN}), "has no member SST-2/train.tsv"),
    ("sst2", "a.zip", sst2(TRAIN + "odd\t7\n"), "SST-2/train.tsv: line 5: the label must be"),
    ("california_housing", "a.csv", HOUSING, "the first line names no column longitude"),
    ("california_housing", "a.tgz", tar({"a": b""}), "has no member cal_housing.data; is it"),
    ("purchase100", "a.tgz", tar({}), "has no file; is it the right archive"),
    ("purchase100", "a.csv", b"\n\n", "there are no records"),
]
OF_HOUSES = [
    (f"{HOUSING}1,2,3,4,5,6,7,x,9\n", "line 5: median_income must be a number, not"),
    ("1,2,3,4,5,6,7,8,\n", "line 2: median_house_value must be a number, not ''"),
    ("1,2,3,4,5,6,0,8,9\n", "line 2: households must be above 0"),
    ("1,2,3\n", "line 2 has 3 columns; 9 are needed"),
    ("", "there are no records"),
]
WRONG_FILES += [
    ("california_housing", "a.csv", f"{COLUMNS}\n{text}", end) for text, end in OF_HOUSES
]
BITS = ",0" * 600
OF_PURCHASES = [
    (f"0{BITS}", "line 5: the label must be 1 to 100, not '0'"),
    (BITS, "line 5: the label must be 1 to 100, not ''"),
    (f"1{BITS[2:]},2", "line 5: bit 600 must be 0 or 1, not '2'"),
    (f"1{BITS[2:]}", "line 5: 600 columns in place of a label and 600 bits"),
    (f"1{BITS[:1000]},\xff{BITS[:198]}", "line 5: bit 501 must be 0 or 1"),
]
WRONG_FILES += [("purchase100", "a.csv", purchases({5: text}), end) for text, end in OF_PURCHASES]
WRONG_FILES.append(("purchase100", "a.tgz", tar({"data": WRONG_FILES[-1][2]}), OF_PURCHASES[-1][1]))


# Archives hold the time, so their bytes are no part of a test's name.
@pytest.mark.parametrize("number", range(len(WRONG_FILES)))
def test_wrong_files_of_sources_are_named(number, tmp_path, refuses):
    source, file, content, message = WRONG_FILES[number]
    path = filled(tmp_path / file, content if isinstance(content, bytes) else content.encode())
    refuses(f"{re.escape(str(path))}.*{re.escape(message)}", load_source, source, files=[path])


def test_numbers_of_files_are_those_of_the_source(tmp_path, refuses):
    archive = filled(tmp_path / "a.tgz", cifar10())
    two, three = [archive] * 2, [archive] * 3
    missing = "source cifar10 is read from files, and none is given; download it"
    refuses(missing, load_source, "cifar10", files=[])
    refuses("give the official archive alone, or .npz files", load_source, "cifar10", files=two)
    refuses("source cifar10 is read from 2 files, not from 3", load_source, "cifar10", files=three)
    generated = "source digits is read from no files, not from 1"
    refuses(generated, load_source, "digits", files=[archive])
    refuses("source mine.npz is read from 1 files; 2 are given", load_source, "mine.npz", files=two)
    refuses("unknown dataset source 'digit'; did you mean 'digits'", load_source, "digit")
    refuses("none.parquet does not exist", load_source, "none.parquet")


@pytest.mark.parametrize("name", GENERATED)
def test_what_is_known_of_a_generated_source_is_true(name):
    entry = KNOWN_SOURCES[name]
    whole = load_source(name)
    assert len(whole.training) == entry.num_training
    assert (whole.test, entry.num_test) == (None, None)
    assert whole.training.features.shape[1:] == entry.shape
    assert whole.num_classes == entry.num_classes
    assert whole.synthetic == entry.is_drawn

    def read(seed: int, count: int) -> Source:
        return load_records(SourceStage(source=name, seed=seed, max_records=count), files=[])

    most = 9000 if entry.is_drawn else 1797
    more, other = read(3, most), read(4, most)
    assert np.array_equal(more.training.labels, other.training.labels) != entry.is_drawn
    for count in (1, 4096, 5000) if entry.is_drawn else (1, 1000):
        few = read(3, count).training
        np.testing.assert_array_equal(few.features, more.training.features[:count])
        np.testing.assert_array_equal(few.labels, more.training.labels[:count])


def test_synthetic_purchases_are_learnable_but_not_from_few_records():
    """The accuracy of naive Bayes, a linear model, grows with the data and stays below 1."""
    source = load_source("purchase100_synthetic", max_records=53_000)
    assert {*np.unique(source.training.features)} == {0, 1}
    counts = np.bincount(source.training.labels, minlength=100)
    assert counts.min() >= 10
    assert counts.max() > 2 * counts.min()
    records, one_hot = source.training.features.astype(np.float32), np.eye(100, dtype=np.float32)
    accuracy = []
    for count in (1000, 10_000, 50_000):
        members = one_hot[source.training.labels[:count]]
        bought = (members.T @ records[:count] + 1) / (members.sum(axis=0)[:, None] + 2)
        score = records[50_000:] @ np.log(bought / (1 - bought)).T + np.log(1 - bought).sum(axis=1)
        accuracy.append(np.mean(score.argmax(axis=1) == source.training.labels[50_000:]))
    np.testing.assert_allclose(accuracy, [0.27, 0.78, 0.88], atol=0.05)


@real
def test_the_real_files_have_the_records_that_are_known_of_them():
    def read(source: str, *files: str) -> Source:
        return load_source(source, files=[DATA / source / file for file in files])

    images = read("cifar10", "cifar10_train_10000.npz", "cifar10_test_2000.npz")
    for part, count in ((images.training, 1000), (images.test, 200)):
        assert np.bincount(part.labels).tolist() == [count] * 10
    # CIFAR-10's well-known means; those of the subset are close.
    means = images.training.features.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)
    phrases = read("sst2", "glue/train.tsv", "glue/dev.tsv")
    sentences = read("sst2", "sentence/train.tsv", "sentence/dev.tsv")
    parts = (phrases.training, phrases.test, sentences.training)
    counts = [np.bincount(part.labels).tolist() for part in parts]
    assert counts == [[29_780, 37_569], [428, 444], [3310, 3610]]
    entry = KNOWN_SOURCES["sst2"]
    assert [*map(len, parts[:2])] == [entry.num_training, entry.num_test]
    houses = read("california_housing", "housing.csv").training
    raw = pd.read_csv(DATA / "california_housing/housing.csv").dropna()
    assert len(houses) == 20_640 - 207
    np.testing.assert_allclose(houses.features[:, 3], raw.total_bedrooms / raw.households)
    above = raw.median_house_value > raw.median_house_value.median()
    np.testing.assert_array_equal(houses.labels, above.astype(int))


# Splits, and the files of users.
RNG = np.random.default_rng(0)
FEATURES, LABELS = RNG.normal(3.0, 5.0, (120, 4)), np.tile(np.arange(3), 40)
SOURCE = Source("some", Records(FEATURES, LABELS))
BYTES = RNG.integers(0, 256, (120, 3, 5, 4), dtype=np.uint8)
BYTES[:, 2] = 7  # a channel that is constant
WITH_NAN = np.ones((120, 4))
WITH_NAN[17, 2] = np.nan


def parts_of(split: Split) -> list[Records]:
    return [split.private, split.auxiliary, split.test]


def source_of(**arrays: Any) -> Source:
    test, names = arrays.pop("test", None), arrays.pop("class_names", ())
    records = Records(**{"features": FEATURES, "labels": LABELS} | arrays)
    return Source("some", records, test, class_names=names)


COUNTS = st.none() | st.integers(1, 30)
SPLITS = st.tuples(st.integers(0, 2**32), st.integers(1, 60), st.booleans(), COUNTS, COUNTS)
WAYS = st.tuples(st.booleans(), st.sampled_from(["numbers", "images", "bytes"]))


@given(SPLITS, WAYS)
@settings(max_examples=60)
def test_splits(counts, way):
    """Disjoint, each record scaled with its label, by the auxiliary records alone (or channels)."""
    (seed, num_records, balanced, num_auxiliary, num_test), (has_test, kind) = counts, way
    num_records = min(num_records * (3 if balanced else 1), 60)
    features = {"numbers": FEATURES, "images": FEATURES.reshape(120, 2, 1, 2), "bytes": BYTES}[kind]
    test = Records(features[:31] + 1, LABELS[:31]) if has_test else None
    counts = {"num_records": num_records, "num_auxiliary": num_auxiliary, "num_test": num_test}
    source = source_of(features=features, test=test)
    split = split_records(source, balanced=balanced, seed=seed, **counts)
    private, auxiliary, tested = parts_of(split)
    others = 120 - num_records
    default = others if has_test else others // 2
    assert (len(private), len(auxiliary)) == (num_records, num_auxiliary or default)
    assert len(tested) == (num_test or (31 if has_test else others - len(auxiliary)))
    if balanced:
        assert {*np.bincount(private.labels)} == {num_records // 3}
    axes = (0,) if kind == "numbers" else (0, 2, 3)
    records = []
    for part in parts_of(split):
        assert part.features.dtype == np.float32
        assert part.features.shape[1:] == features.shape[1:]
        raw = part.features * split.scaling.deviation + split.scaling.mean
        origin = test.features if has_test and part is tested else features
        gaps = np.abs(raw.reshape(len(raw), 1, -1) - origin.reshape(1, len(origin), -1)).max(-1)
        rows = gaps.argmin(axis=1)
        assert gaps.min(axis=1).max() < 1e-4
        np.testing.assert_array_equal(part.labels, LABELS[rows])
        records += [] if has_test and part is tested else rows.tolist()
    assert len({*records}) == len(records)
    np.testing.assert_array_equal(split.private_rows, records[:num_records])
    unscaled = features[records[num_records : num_records + len(auxiliary)]]
    np.testing.assert_allclose(split.scaling.mean, unscaled.mean(axis=axes, keepdims=True))
    deviation = unscaled.std(axis=axes, keepdims=True)
    np.testing.assert_allclose(split.scaling.deviation, np.where(deviation > 0, deviation, 1))


@pytest.mark.parametrize("num_records", [5, 17, 90])
def test_a_feature_that_is_constant_but_for_a_private_record_is_not_scaled(num_records):
    """In double precision, the mean of many 0.1 is not 0.1."""
    labels, features = np.arange(num_records) % 2, np.full((num_records, 2), 0.1)
    features[:, 1] = labels
    options = {"num_records": 2, "seed": 0, "balanced": False}
    [row, _] = split_records(source_of(features=features, labels=labels), **options).private_rows
    features[row, 0] = 0.2
    split = split_records(source_of(features=features, labels=labels), **options)
    np.testing.assert_allclose(split.private.features[:, 0], [0.1, 0.0], rtol=1e-6)
    for part in (split.auxiliary, split.test):
        assert not part.features[:, 0].any()
    np.testing.assert_array_equal(split.scaling.deviation[0, 0], 1.0)


def test_a_balanced_split_leaves_a_record_of_each_class():
    labels = np.repeat([0, 1, 2], [21, 49, 50])
    split = split_records(source_of(labels=labels), num_records=60, seed=1)
    assert np.bincount(split.private.labels).tolist() == [20, 20, 20]
    left = np.concatenate([split.auxiliary.labels, split.test.labels])
    assert np.bincount(left).tolist() == [1, 29, 30]


def test_numbers_to_predict_are_scaled_by_the_auxiliary_ones_and_ids_of_tokens_stay():
    numbers = (FEATURES[:, 0] * 1e5 + 3).astype(np.float32)
    source = Source("some", Records(BYTES.astype(np.uint16), numbers))
    split = split_records(source, num_records=50, seed=1, balanced=False, standardised=False)
    unscaled = numbers[[*map(np.argmin, np.abs(  # the rows of the auxiliary records
        split.auxiliary.labels[:, None] * split.label_scaling.deviation + split.label_scaling.mean
        - numbers)
    )]]  # fmt: skip
    np.testing.assert_allclose(split.label_scaling.mean, unscaled.mean(dtype=float), rtol=1e-5)
    np.testing.assert_allclose(split.label_scaling.deviation, unscaled.std(dtype=float), rtol=1e-5)
    expected = numbers[split.private_rows] - split.label_scaling.mean
    expected = expected / split.label_scaling.deviation
    np.testing.assert_allclose(split.private.labels, expected, rtol=1e-5)
    assert split.private.features.dtype == np.int64
    np.testing.assert_array_equal(split.private.features, BYTES[split.private_rows])
    with pytest.raises(InputError, match=r"some: labels are numbers, .* set balanced: false"):
        split_records(source, num_records=50, seed=1)


def test_the_seed_decides_the_split_and_counts_and_blocks_do_not(monkeypatch):
    def split(seed: int = 3, **counts: Any) -> Split:
        return split_records(SOURCE, num_records=60, seed=seed, **counts)

    whole, fewer = split(), split(num_auxiliary=30, num_test=20)
    assert not np.array_equal(whole.private.features, split(4).private.features)
    np.testing.assert_array_equal(fewer.test.features, whole.test.features[:20])
    with_test = split_records(source_of(test=SOURCE.training[:9]), num_records=60, seed=3)
    np.testing.assert_array_equal(with_test.private.labels, whole.private.labels)
    monkeypatch.setattr("dpcanary.data.record_source._BLOCK_NUMBERS", 28)
    for part, other in zip(parts_of(split()), parts_of(whole), strict=True):
        np.testing.assert_allclose(part.features, other.features, rtol=1e-6)
        np.testing.assert_array_equal(part.labels, other.labels)


SPLIT_REFUSALS = [
    ({"features": WITH_NAN}, {}, "some: record 17 has a feature that is NaN or infinite"),
    ({"features": np.ones(120)}, {}, "records x features"),
    ({"features": np.ones((0, 4)), "labels": []}, {}, "there are no records"),
    ({"test": Records(np.ones((9, 5)), [0] * 9)}, {}, "a test record has shape (5,), the othe"),
    ({"test": Records(WITH_NAN, LABELS)}, {}, "test part: record 17 has a feature that is NaN"),
    ({"labels": np.repeat([0, 1, 2], [10, 50, 60])}, {}, "class 0 has 10 records, num_records"),
    (
        {"labels": np.repeat([0, 1, 2], [50, 60, 10]), "class_names": ("no", "maybe", "yes")},
        {},
        "class yes has 10 records, num_records 60 needs 20 of each of the 3 classes",
    ),
    ({"labels": np.tile([0, 1, 3], 40)}, {}, "class 2 has 0 records, num_records 60 needs 15"),
    ({"labels": np.repeat([0, 1, 2], [20, 50, 50])}, {}, "3 classes, and others for the adversary"),
    ({}, {"num_records": 61}, "61 is no multiple of its 3 classes; change it, or set balanced"),
    ({}, {"num_records": 120, "balanced": False}, "leaves none as auxiliary or test records"),
    ({}, {"num_records": 121, "balanced": False}, "num_records 121 is more than its 120 rec"),
    ({}, {"num_auxiliary": 61}, "num_auxiliary 61 is not possible: 60 records are left"),
    ({}, {"num_auxiliary": 60}, "num_test by default is not possible: 0 records are left"),
    ({}, {"num_test": 31}, "num_test 31 is not possible: 30 records are left"),
]


@pytest.mark.parametrize(("arrays", "counts", "message"), SPLIT_REFUSALS)
def test_records_and_counts_that_do_not_fit_are_named(arrays, counts, message):
    with pytest.raises(InputError, match=re.escape(message)):
        split_records(source_of(**arrays), **{"num_records": 60, "seed": 0} | counts)


TABLE = pd.DataFrame({"age": RNG.integers(0, 90, 30), "label": np.tile([0, 1, 2], 10)}).assign(
    income=RNG.normal(size=30), owner=RNG.integers(0, 2, 30).astype(bool)
)
ROWS = np.arange(30)


def written(folder: Path, kind: str, table: pd.DataFrame, **options: Any) -> str:
    path = folder / f"mine{kind}"
    if kind == ".npz":
        features = table.drop(columns="label").to_numpy(float)
        np.savez(path, features=features, labels=table["label"].to_numpy())
    elif kind == ".parquet":
        table.to_parquet(path, **options)
    else:
        table.to_csv(path, index=False)
    return str(path)


@pytest.mark.parametrize("kind", [".npz", ".parquet", ".csv"])
def test_a_users_own_file_is_read_and_damage_is_named(kind, tmp_path, refuses):
    path = written(tmp_path, kind, TABLE)
    whole = load_source(path)
    features = TABLE[["age", "income", "owner"]].astype(float)
    np.testing.assert_allclose(whole.training.features, features, rtol=1e-12)
    np.testing.assert_array_equal(whole.training.labels, TABLE["label"])
    assert (whole.name, whole.num_classes, whole.test) == (path, 3, None)
    numbers = written(tmp_path, kind, TABLE.assign(label=TABLE["income"] * 1000))
    source = load_source(numbers, label_kind="numbers")
    np.testing.assert_array_equal(source.training.labels, np.float32(TABLE["income"] * 1000))
    assert (source.num_classes, source.class_names) == (1, ())
    written(tmp_path, kind, TABLE)
    first = load_source("other" + kind, files=[Path(path)], max_records=20)
    np.testing.assert_array_equal(first.training.features, whole.training.features[:20])
    # Classes without a record, or a single one, or one of each record.
    refused = "labels must be integers from 0" if kind == ".npz" else ""
    for labels, message in [
        (np.tile([1, 2, 3], 10), "no record has label 0, though labels go up to 3; number the cl"),
        (np.tile([0, 1, 3, 7, 7], 6), "no record has label 2, though labels go up to 7"),
        (np.arange(30) % 11 * 250, r"2500; .* counts or amounts, for regression: --loss sq"),
        (
            np.arange(30) % 21 * 250,
            "label 1, though labels go up to 5000; for regression: --loss sq",
        ),
        (np.zeros(30, int), "all records have the same label"),
        (np.arange(30), "every record has a label of its own"),
        (np.linspace(0, 1, 30), refused or "label +label +30 numbers +left to you: for regression"),
        (np.tile([-1, 0, 1], 10), refused or "label +label +not 0, 1, 2"),
    ]:
        with pytest.raises(InputError, match=rf"(?s)mine{kind}.*{message}"):
            load_source(written(tmp_path, kind, TABLE.assign(label=labels)))
    assert load_source(written(tmp_path, kind, TABLE.assign(label=np.arange(30) // 2)))
    content = Path(written(tmp_path, kind, TABLE)).read_bytes()
    for damaged in (content[:-20], Path(__file__).read_bytes(), b""):
        Path(path).write_bytes(damaged)
        if kind in (".npz", ".parquet") or damaged != content[:-20]:
            refuses(f"mine{kind}", load_source, path)
    Path(path).unlink()
    refuses(f"mine{kind} does not exist", load_source, path)


def test_a_test_part_is_cut_and_features_of_a_known_source_may_lack_a_class(tmp_path):
    test = {"test_features": FEATURES[:9] + 1, "test_labels": LABELS[:9]}
    source = load_source(npz(tmp_path, test), max_records=7, num_test=2)
    assert len(source.training) == 7
    np.testing.assert_array_equal(source.test.features, FEATURES[:2] + 1)
    assert source.test.labels.tolist() == [0, 1]
    # Classes of a known source are numbered without gaps, but the first records may lack some.
    records = Records(RNG.normal(size=(4, 2)), [6, 9, 9, 4])
    write_arrays(tmp_path / "features.npz", header={}, arrays=vars(records))
    stage = SourceStage(source="cifar10", max_records=4, seed=0)
    encoded = load_records(stage, files=[], features=tmp_path / "features.npz")
    np.testing.assert_array_equal(encoded.training.labels, records.labels)


TEST_PART = {"test_features": np.ones((2, 4))}


def npz(folder: Path, arrays: dict[str, Any]) -> str:
    arrays = {"features": FEATURES, "labels": LABELS} | arrays
    return str(filled(folder / "mine.npz", zipped_arrays(**arrays)))


def parquet(folder: Path, change: dict[str, Any]) -> str:
    dropped = [name for name, values in change.items() if values is None]
    return written(folder, ".parquet", TABLE.assign(**change).drop(columns=dropped))


def csv(folder: Path, text: str) -> str:
    return str(filled(folder / "mine.csv", text.encode("latin-1")))


FILE_REFUSALS = [
    (npz, {"features": np.array(["a"] * 120)}, "features must be real numbers, not <U1"),
    (npz, {"labels": np.zeros(7, int)}, "need labels of shape (120,), one per record"),
    (npz, TEST_PART, "mine.npz has no array test_labels"),
    (npz, {"test_labels": np.zeros(9, int)}, "mine.npz has no array test_features"),
    (npz, TEST_PART | {"test_labels": [0, 8]}, "no record has label 3, though labels go up to 8"),
    (parquet, {"label": None}, "must have one column 'label', and others; its columns are age"),
    (parquet, {"income": np.where(ROWS == 4, np.inf, 1.0 + ROWS % 2)}, "1 not numbers   missing"),
    (parquet, {"age": pd.array([*range(29), None], "Int64")}, "1 missing       the median, and"),
    (parquet, {"label": np.where(ROWS == 4, np.nan, ROWS % 2)}, "1 missing       left to you: rem"),
    (csv, "größe,label\n1.5,0\n2.5,1\n", "mine.csv: its header is not UTF-8; save the table"),
    (csv, "a,label\n1.5,nö\n2.5,ja\n", "the texts in column 'label' are not UTF-8; save the t"),
    (csv, f"{'a' * 200_000},label\n1,0\n2,1\n", "mine.csv is not a whole table (field larger"),
    (csv, "a,b,a,label\n1,2,3,0\n4,5,6,1\n", "mine.csv has several columns 'a'; rename or dr"),
]


@pytest.mark.parametrize(("write", "content", "message"), FILE_REFUSALS)
def test_own_files_that_are_wrong_are_named(write, content, message, tmp_path, refuses):
    refuses(re.escape(message), load_source, write(tmp_path, content))


def test_a_tables_index_is_no_feature(tmp_path, caplog):
    path = written(tmp_path, ".parquet", TABLE[TABLE["age"] > 20])
    assert load_source(path).training.features.shape[1] == 3
    assert "its index is not a feature and is left out: __index_level_0__" in caplog.text


@pytest.mark.parametrize(("kind", "where"), [(".csv", "column 'a'"), (".npz", "array 'features'")])
def test_vast_features(kind, where, tmp_path, caplog, refuses):
    def read(value: float) -> None:
        table = pd.DataFrame({"a": [value, 1.5, -2.0, 0.25], "label": np.arange(4) % 2})
        load_source(written(tmp_path, kind, table))

    read(1e18)  # nanoseconds of these decades
    assert caplog.messages == []
    read(-1e30)
    [said] = caplog.messages
    assert f"{where} has values up to 1e+30: if they stand for missing ones" in said
    refuses(r"values up to 1e\+200, which cannot be standardised", read, 1e200)
    test = {"test_features": np.full((2, 4), 1e200), "test_labels": [0, 1]}
    message = r"array 'test_features' has values up to 1e\+200, which cannot be standardised"
    refuses(message, load_source, npz(tmp_path, test))

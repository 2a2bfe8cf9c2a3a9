"""Each source is read from its official form, and from the real files if they are available.

The environment variable DPCANARY_DATA names a folder with `cifar10`, `sst2` and
`california_housing`; without it, the tests on real files are skipped.
"""

import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from dpcanary.datasets.public import purchase100_synthetic
from dpcanary.datasets.settings import SourceStage
from dpcanary.datasets.source import KNOWN_SOURCES, Source
from dpcanary.datasets.sources import DRAW, READ, load_records, load_source
from dpcanary.datasets.splitting import split_records
from dpcanary.errors import InputError

DATA = Path(os.environ.get("DPCANARY_DATA", ""))
real = pytest.mark.skipif("DPCANARY_DATA" not in os.environ, reason="needs DPCANARY_DATA")


def tar(members: Mapping[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def zipped(members: Mapping[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def npz(**arrays: Any) -> bytes:
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
COLUMNS = (
    "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,"
    "median_income,median_house_value"
)
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
FORMS = [
    Form("cifar10", "cifar-10-binary.tar.gz", cifar10(), IMAGES[:20], TENS[:20], IMAGES[20:]),
    Form("cifar10", "train.npz", npz(**TRAINING), IMAGES[:4], TENS[:4]),
    Form("sst2", "SST-2.zip", sst2(), SENTENCES, [1, 0, 0], ["moving"]),
    *(Form("sst2", "train.tsv", text.encode(), ["good", "bad"], [1, 0]) for text in TABLES),
    # The median is not above itself.
    Form("california_housing", "cal_housing.tgz", housing(), HOUSES, [1, 0, 0]),
    Form("california_housing", "housing.csv", "\r\n".join(LINES).encode(), HOUSES, [1, 0, 0]),
    *(
        Form("purchase100", file, content, PURCHASES.features, PURCHASES.labels)
        for file, content in [
            ("purchase.csv", purchases()),
            ("purchase.csv", purchases(end="\r\n")),
            ("dataset_purchase.tgz", tar({"._a": b"x", "dataset_purchase": purchases()})),
        ]
    ),
]


def written(folder: Path, file: str, content: bytes) -> Path:
    path = folder / file
    path.write_bytes(content)
    return path


def test_every_source_that_is_read_has_its_forms():
    assert {form.source for form in FORMS} == {
        name for name, known in KNOWN_SOURCES.items() if not known.is_generated
    }
    assert {*READ, *DRAW} == {*KNOWN_SOURCES}


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.file)
def test_a_source_is_read_from_its_forms_and_from_no_other_file(form, tmp_path, caplog):
    path = written(tmp_path, form.file, form.content)
    source, known = load_source(form.source, files=[path]), KNOWN_SOURCES[form.source]
    parts = [(source.training.features, form.features), (source.training.labels, form.labels)]
    parts += [(source.test.features, form.test)] if form.test is not None else []
    for part, expected in parts:
        if source.kind == "texts":
            assert [*part] == [*expected]
        else:
            np.testing.assert_allclose(part, expected, rtol=1e-12)
            assert source.training.features.shape[1:] == known.shape
    # The jobs of a config are planned from what is known before a source is read.
    assert source.num_classes <= known.num_classes
    assert (source.test is None) == (form.test is None)
    assert source.test is None or known.num_test is not None
    assert (source.training.labels.dtype, source.synthetic) == (np.int64, False)
    if form.file == "housing.csv":
        assert "1 rows without total_bedrooms are left out" in caplog.text
    for content in (Path(__file__).read_bytes(), b"", b"\xff\xfe\x00"):
        with pytest.raises(InputError, match=path.name):
            load_source(form.source, files=[written(tmp_path, form.file, content)])
    path.unlink()
    with pytest.raises(InputError, match=f"{path} does not exist"):
        load_source(form.source, files=[path])


def test_details_of_forms(tmp_path, monkeypatch):
    official, arrays = (written(tmp_path, form.file, form.content) for form in FORMS[:2])
    source = load_source("cifar10", files=[official])
    assert (source.kind, source.training.features.dtype) == ("images", np.uint8)
    assert source.class_names[6] == "frog"
    split = split_records(source, num_records=10, seed=0)
    assert [len(split.auxiliary), len(split.test)] == [10, 4]
    with_test = load_source("cifar10", files=[arrays, arrays], num_test=1)
    np.testing.assert_array_equal(with_test.test.features, IMAGES[:1])
    texts = load_source("sst2", files=[written(tmp_path, "SST-2.zip", sst2())])
    assert (texts.class_names, texts.test.labels.tolist()) == (("negative", "positive"), [1])
    with pytest.raises(InputError, match="needs an encoder"):
        split_records(texts, num_records=2, seed=0)
    # Purchases are read in blocks; and each group has its class.
    monkeypatch.setattr("dpcanary.datasets.public._BLOCK_BYTES", 4000)
    path = written(tmp_path, "purchase.csv", purchases())
    read = load_source("purchase100", files=[path])
    np.testing.assert_array_equal(read.training.features, PURCHASES.features)
    path = written(tmp_path, "purchase.csv", purchases({70: "101" + ",0" * 600}))
    with pytest.raises(InputError, match="line 70: the label must be 1 to 100, not '101'"):
        load_source("purchase100", files=[path])
    path.write_text("".join(f"{label}{',0' * 600}\n" for label in range(100, 0, -1)))
    read = load_source("purchase100", files=[path])
    assert read.training.labels.tolist() == [*range(99, -1, -1)]


OTHER_LABEL = cifar10({"data_batch_4.bin": PIXELS[3].tobytes() + b"\x0b" + bytes(3072)})


def wrong_images(**changes: Any) -> bytes:
    return npz(**{"images": np.zeros((3, 32, 32, 3), np.uint8), "labels": np.arange(3)} | changes)


@pytest.mark.parametrize(
    ("source", "file", "content", "message"),
    [
        ("cifar10", "a.tgz", tar({"a": b""}), "has no member data_batch_1.bin: it is not"),
        ("cifar10", "a.tgz", OTHER_LABEL, "data_batch_4.bin: record 4 has label 11; CIFAR-10's"),
        ("cifar10", "a.tgz", cifar10({"data_batch_1.bin": bytes(3072)}), "no multiple of 3073"),
        ("cifar10", "a.npz", npz(images=TRAINING["images"]), "has no array labels"),
        ("cifar10", "a.npz", wrong_images(images=IMAGES[:3]), "uint8 of shape (3, 3, 32, 32)"),
        ("cifar10", "a.npz", wrong_images(images=np.zeros((3, 32, 32, 3))), "not float64"),
        ("cifar10", "a.npz", wrong_images(labels=[0, 10, 1]), "record 1 has label 10"),
        ("cifar10", "a.npz", wrong_images(labels=[0, 1, 2, 3]), "need labels of shape (3,), one"),
        ("sst2", "a.tsv", "good\t1\nbad\t0\nso so\t2\n", "line 3: the label must be 0 or 1, not"),
        ("sst2", "a.tsv", "label\tsentence\n1\tgood\n0\tbad\tvery\n", "line 3 has 3 columns"),
        ("sst2", "a.tsv", "phrase\tmood\ngood\t1\nbad\t0\n", "line 1: the label must be 0 or 1"),
        ("sst2", "a.tsv", "label\tsentence\n1\t \n", "line 2: the sentence is empty"),
        ("sst2", "a.tsv", "label\tsentence\n", "there are no records"),
        ("sst2", "a.tsv", b"good\xff\t1\n", "is not UTF-8 text"),
        ("sst2", "a.zip", zipped({"train.tsv": TRAIN}), "has no member SST-2/train.tsv"),
        ("sst2", "a.zip", sst2(TRAIN + "odd\t7\n"), "SST-2/train.tsv: line 5: the label must be"),
        *(
            ("california_housing", "a.csv", f"{COLUMNS}\n{lines}", message)
            for lines, message in [
                (f"{HOUSING}1,2,3,4,5,6,7,x,9\n", "line 5: median_income must be a number, not"),
                ("1,2,3,4,5,6,7,8,\n", "line 2: median_house_value must be a number, not ''"),
                ("1,2,3,4,5,6,0,8,9\n", "line 2: households must be above 0"),
                ("1,2,3\n", "line 2 has 3 columns; 9 are needed"),
                ("", "there are no records"),
            ]
        ),
        ("california_housing", "a.csv", HOUSING, "the first line names no column longitude"),
        ("california_housing", "a.csv", b"\xff\xfe", "is not UTF-8 text"),
        ("california_housing", "a.tgz", tar({"a": b""}), "has no member cal_housing.data; is it"),
        *(
            ("purchase100", file, content, f"line 5: {message}")
            for line, message in [
                ("0" + ",0" * 600, "the label must be 1 to 100, not '0'"),
                ("" + ",0" * 600, "the label must be 1 to 100, not ''"),
                ("1" + ",0" * 599 + ",2", "bit 600 must be 0 or 1, not '2'"),
                ("1" + ",0" * 599, "600 columns in place of a label and 600 bits"),
                ("1" + ",0" * 601, "602 columns in place of a label and 600 bits"),
                ("1" + ",0" * 500 + ",\xff" + ",0" * 99, "bit 501 must be 0 or 1"),
            ]
            for bad in [purchases({5: line})]
            for file, content in (("a.csv", bad), ("a.tgz", tar({"dataset_purchase": bad})))
        ),
        ("purchase100", "a.tgz", tar({}), "has no file; is it the right archive"),
        ("purchase100", "a.csv", b"\n\n", "a.csv"),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else None,  # archives hold the time
)  # fmt: skip
def test_wrong_files_of_sources_are_named(source, file, content, message, tmp_path):
    path = written(tmp_path, file, content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError) as caught:
        load_source(source, files=[path])
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_numbers_of_files_are_those_of_the_source(tmp_path):
    archive = written(tmp_path, "a.tgz", cifar10())
    for source, files, message in [
        ("cifar10", [], "source cifar10 is read from files, and none is given; download it"),
        ("cifar10", [archive] * 2, "give the official archive alone, or .npz files"),
        ("cifar10", [archive] * 3, "source cifar10 is read from 2 files, not from 3"),
        ("digits", [archive], "source digits is read from no files, not from 1"),
        ("mine.npz", [archive] * 2, "source mine.npz is read from 1 file; 2 are given"),
        ("digit", [], "unknown dataset source 'digit'; did you mean 'digits'"),
        ("none.parquet", [], "none.parquet does not exist"),
    ]:
        with pytest.raises(InputError, match=message):
            load_source(source, files=files)


@pytest.mark.parametrize("name", [name for name, one in KNOWN_SOURCES.items() if one.is_generated])
def test_what_is_known_of_a_generated_source_is_true(name):
    known = KNOWN_SOURCES[name]
    whole = load_source(name)
    assert len(whole.training) == known.num_training
    assert (whole.test, known.num_test) == (None, None)
    assert whole.training.features.shape[1:] == known.shape
    assert whole.num_classes == known.num_classes
    assert whole.synthetic == known.is_drawn

    def read(seed: int, count: int) -> Source:
        return load_records(SourceStage(source=name, seed=seed, max_records=count), files=[])

    most = 9000 if known.is_drawn else 1797
    more, other = read(3, most), read(4, most)
    assert np.array_equal(more.training.labels, other.training.labels) != known.is_drawn
    for count in (1, 4096, 5000) if known.is_drawn else (1, 1000):
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
    for part, counts in [
        (phrases.training, [29_780, 37_569]),
        (phrases.test, [428, 444]),
        (sentences.training, [3310, 3610]),
    ]:
        assert np.bincount(part.labels).tolist() == counts
    known = KNOWN_SOURCES["sst2"]
    assert [len(phrases.training), len(phrases.test)] == [known.num_training, known.num_test]
    names = {"header": 0, "names": ["label", "sentence"]}
    kept = pd.read_csv(DATA / "sst2/glue/train.tsv", sep="\t", quoting=3, **names)
    assert phrases.training.features.tolist() == kept.sentence.str.strip().tolist()
    assert phrases.training.labels.tolist() == kept.label.tolist()
    houses = read("california_housing", "housing.csv").training
    raw = pd.read_csv(DATA / "california_housing/housing.csv").dropna()
    assert len(houses) == 20_640 - 207
    np.testing.assert_allclose(houses.features[:, 3], raw.total_bedrooms / raw.households)
    above = raw.median_house_value > raw.median_house_value.median()
    np.testing.assert_array_equal(houses.labels, above.astype(int))

"""Each source is read from its official form, and from the real files if they are available.

The environment variable DPCANARY_DATA names a folder with `cifar10`, `sst2` and
`california_housing`; without it, the tests on real files are skipped.
"""

import io
import os
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dpcanary.datasets.public import purchase100_synthetic
from dpcanary.datasets.source import KNOWN_SOURCES, Source
from dpcanary.datasets.sources import load_source
from dpcanary.datasets.splitting import split_records
from dpcanary.errors import InputError

real = pytest.mark.skipif("DPCANARY_DATA" not in os.environ, reason="needs DPCANARY_DATA")
DATA = Path(os.environ.get("DPCANARY_DATA", ""))


def tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def check_what_is_known(source: Source) -> None:
    """The jobs of a config are planned from what is known of a source before it is read."""
    known = KNOWN_SOURCES[source.name]
    assert source.training.features.shape[1:] == known.shape
    assert source.num_classes == known.num_classes
    assert source.test is None or known.num_test is not None


def halved(path: Path) -> Path:
    """The file after a broken transfer."""
    cut = path.with_name(f"cut-{path.name}")
    cut.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return cut


# CIFAR-10

PER_BATCH = 4


@pytest.fixture
def pixels():
    """Bytes of six batches, with their labels in front, shape (6, 4, 3073)."""
    rng = np.random.default_rng(0)
    batches = rng.integers(0, 256, (6, PER_BATCH, 3073), dtype=np.uint8)
    batches[:, :, 0] = np.arange(6 * PER_BATCH).reshape(6, -1) % 10
    return batches


def cifar_archive(path: Path, batches) -> Path:
    # The batches are not in order in the official archive either.
    names = [f"data_batch_{index}.bin" for index in (1, 4, 3, 2, 5)]
    order = [0, 3, 2, 1, 4]
    members = {
        f"cifar-10-batches-bin/{name}": batches[batch].tobytes()
        for name, batch in zip(names, order, strict=True)
    }
    members["cifar-10-batches-bin/test_batch.bin"] = batches[5].tobytes()
    members["cifar-10-batches-bin/readme.html"] = b"<html>"
    return tar(path, members)


def test_cifar10s_archive(pixels, tmp_path):
    path = cifar_archive(tmp_path / "cifar-10-binary.tar.gz", pixels)
    source = load_source("cifar10", files=[path])
    assert source.kind == "images"
    assert source.training.features.shape == (20, 3, 32, 32)
    assert source.training.features.dtype == np.uint8
    np.testing.assert_array_equal(source.training.labels, np.arange(20) % 10)
    # Record 6 is the third of the second batch; its first row of red pixels comes first.
    np.testing.assert_array_equal(source.training.features[6, 0, 0], pixels[1, 2, 1:33])
    np.testing.assert_array_equal(source.training.features[6, 2, 31], pixels[1, 2, -32:])
    np.testing.assert_array_equal(source.test.features.reshape(4, -1), pixels[5, :, 1:])
    assert source.class_names[6] == "frog"
    check_what_is_known(source)
    split = split_records(source, num_records=10, seed=0)
    assert [len(split.auxiliary), len(split.test)] == [10, 4]


def test_cifar10s_arrays(pixels, tmp_path):
    images = pixels[0, :, 1:].reshape(-1, 3, 32, 32)
    path = tmp_path / "train.npz"
    np.savez(path, images=images.transpose(0, 2, 3, 1), labels=pixels[0, :, 0])
    source = load_source("cifar10", files=[path])
    np.testing.assert_array_equal(source.training.features, images)
    assert source.training.labels.dtype == np.int64
    assert source.test is None
    with_test = load_source("cifar10", files=[path, path], num_test=1)
    np.testing.assert_array_equal(with_test.test.features, images[:1])


def test_wrong_cifar10s_are_named(pixels, tmp_path):
    good = cifar_archive(tmp_path / "good.tar.gz", pixels)
    pixels[3, 1, 0] = 11
    wrong = cifar_archive(tmp_path / "wrong.tar.gz", pixels)
    cut = tar(tmp_path / "odd.tgz", {"data_batch_1.bin": bytes(3072)})
    for files, message in (
        ([halved(good)], r"cut-good.tar.gz cannot be read whole"),
        ([Path(__file__)], "cannot be read whole"),
        ([tmp_path / "none.tar.gz"], "none.tar.gz does not exist"),
        (
            [tar(tmp_path / "other.tgz", {"a": b""})],
            "has no member data_batch_1.bin: it is not",
        ),
        ([good, good], "give the official archive alone"),
        ([wrong], r"data_batch_4.bin: record 1 has label 11; .* 0 to 9"),
        ([cut], "3072 bytes are no multiple of 3073"),
    ):
        with pytest.raises(InputError, match=message):
            load_source("cifar10", files=files)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": np.zeros((3, 32, 32, 3), np.uint8)}, "has no array labels"),
        ({"images": np.zeros((3, 3, 32, 32), np.uint8), "labels": np.arange(3)}, "32, 32, 3"),
        ({"images": np.zeros((3, 32, 32, 3)), "labels": np.arange(3)}, "uint8 .* not float64"),
        (
            {"images": np.zeros((3, 32, 32, 3), np.uint8), "labels": np.array([0, 10, 1])},
            "record 1 has label 10",
        ),
        (
            {"images": np.zeros((3, 32, 32, 3), np.uint8), "labels": np.array([0, -1, 1])},
            "labels must be integers from 0",
        ),
        (
            {"images": np.zeros((3, 32, 32, 3), np.uint8), "labels": np.arange(4)},
            r"(cifar10|images.npz): .*need labels of shape \(3,\), one per record",
        ),
    ],
)
def test_wrong_cifar10_arrays_are_named(tmp_path, arrays, message):
    np.savez(tmp_path / "images.npz", **arrays)
    with pytest.raises(InputError, match=message):
        load_source("cifar10", files=[tmp_path / "images.npz"])


@real
def test_real_cifar10():
    files = [DATA / "cifar10/cifar10_train_10000.npz", DATA / "cifar10/cifar10_test_2000.npz"]
    source = load_source("cifar10", files=files)
    assert np.bincount(source.training.labels).tolist() == [1000] * 10
    assert np.bincount(source.test.labels).tolist() == [200] * 10
    assert source.training.labels[:12].tolist() == [*range(10), 0, 1]
    assert (source.training.features.min(), source.training.features.max()) == (0, 255)
    check_what_is_known(source)
    raw = np.load(files[0])["images"]
    np.testing.assert_array_equal(source.training.features[123, 2], raw[123, :, :, 2])
    # CIFAR-10's well-known means; those of the subset are close.
    means = source.training.features.mean(axis=(0, 2, 3)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=0.01)
    split = split_records(source, num_records=500, num_test=1000, seed=0)
    assert np.bincount(split.private.labels).tolist() == [50] * 10


# SST-2

TRAIN = 'sentence\tlabel\n"a fine film \t1\nno \u2028wit , caf\u00e9\t0\ndull\t0\n'
DEV = "sentence\tlabel\nmoving\t1\n"


def sst2_archive(path: Path, train: str = TRAIN) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("SST-2/", "")
        archive.writestr("SST-2/train.tsv", train)
        archive.writestr("SST-2/dev.tsv", DEV)
        archive.writestr("SST-2/original/README.txt", "")
    return path


def test_sst2s_archive(tmp_path):
    source = load_source("sst2", files=[sst2_archive(tmp_path / "SST-2.zip")])
    assert source.kind == "texts"
    assert source.training.features.tolist() == ['"a fine film', "no \u2028wit , caf\u00e9", "dull"]
    assert source.training.labels.tolist() == [1, 0, 0]
    assert source.test.features.tolist() == ["moving"]
    assert source.test.labels.tolist() == [1]
    assert source.class_names == ("negative", "positive")
    check_what_is_known(source)
    with pytest.raises(InputError, match="needs an encoder"):
        split_records(source, num_records=2, seed=0)


@pytest.mark.parametrize(
    "text",
    [
        "label\tsentence\r\n1\tgood\r\n0\tbad",
        "\ufefflabel\tcontent\n1\tgood\n0\tbad\n\n",
        "content\tlabel\n good\t1\nbad \t0\n",
        "good\t1\nbad\t0\n",
        "1\tgood\n0\tbad\n",
    ],
)
def test_sst2s_tables(tmp_path, text):
    path = tmp_path / "train.tsv"
    path.write_bytes(text.encode())
    source = load_source("sst2", files=[path])
    assert source.training.features.tolist() == ["good", "bad"]
    assert source.training.labels.tolist() == [1, 0]
    assert source.test is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"good\t1\nbad\t0\nso so\t2\n", "line 3: the label must be 0 or 1, not '2'"),
        (b"1\tgood\n0\tbad\nx\tso so\n", "line 3: the label must be 0 or 1, not 'x'"),
        (b"label\tsentence\n1\tgood\n0\tbad\tvery\n", "line 3 has 3 columns"),
        (b"phrase\tmood\ngood\t1\nbad\t0\n", "line 1: the label must be 0 or 1, not 'mood'"),
        (b"label\tsentence\n1\t \n", "line 2: the sentence is empty"),
        (b"label\tsentence\n", "there are no records"),
        (b"", "there are no records"),
        (b"good\xff\t1\n", "is not UTF-8 text"),
    ],
)
def test_wrong_sst2s_are_named(tmp_path, text, message):
    path = tmp_path / "train.tsv"
    path.write_bytes(text)
    with pytest.raises(InputError, match=f"train.tsv.*{message}"):
        load_source("sst2", files=[path])


def test_wrong_sst2_archives_are_named(tmp_path):
    good = sst2_archive(tmp_path / "SST-2.zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("train.tsv", TRAIN)
    wrong = sst2_archive(tmp_path / "wrong.zip", train=TRAIN + "odd\t7\n")
    for path, message in (
        (halved(good), r"cut-SST-2.zip cannot be read whole"),
        (tmp_path / "other.zip", r"has no member SST-2/train.tsv"),
        (wrong, r"wrong.zip: SST-2/train.tsv: line 5: .* not '7'"),
        (tmp_path / "none.tsv", "does not exist"),
    ):
        with pytest.raises(InputError, match=message):
            load_source("sst2", files=[path])


@real
def test_real_sst2():
    phrases = load_source("sst2", files=[DATA / f"sst2/glue/{part}.tsv" for part in PARTS])
    assert np.bincount(phrases.training.labels).tolist() == [29_780, 37_569]
    assert np.bincount(phrases.test.labels).tolist() == [428, 444]
    check_what_is_known(phrases)
    assert len(phrases.training) == KNOWN_SOURCES["sst2"].num_training
    assert len(phrases.test) == KNOWN_SOURCES["sst2"].num_test
    assert phrases.training.labels[:5].tolist() == [0, 0, 1, 0, 0]
    assert phrases.training.features[0] == "hide new secretions from the parental units"
    kept = pd.read_csv(
        DATA / "sst2/glue/train.tsv", sep="\t", quoting=3, header=0, names=["label", "sentence"]
    )
    assert phrases.training.features.tolist() == kept.sentence.str.strip().tolist()
    assert phrases.training.labels.tolist() == kept.label.tolist()
    sentences = load_source("sst2", files=[DATA / f"sst2/sentence/{part}.tsv" for part in PARTS])
    assert np.bincount(sentences.training.labels).tolist() == [3310, 3610]
    assert np.bincount(sentences.test.labels).tolist() == [428, 444]
    assert sentences.test.features[0] == "one long string of cliches"


PARTS = ("train", "dev")

# California Housing

HOUSING = [  # the first rows of the real file
    [-122.23, 37.88, 41.0, 880.0, 129.0, 322.0, 126.0, 8.3252, 452600.0],
    [-122.22, 37.86, 21.0, 7099.0, 1106.0, 2401.0, 1138.0, 8.3014, 358500.0],
    [-122.24, 37.85, 52.0, 1467.0, 190.0, 496.0, 177.0, 7.2574, 352100.0],
]
COLUMNS = (
    "longitude,latitude,housing_median_age,total_rooms,total_bedrooms,population,households,"
    "median_income,median_house_value"
)


def housing_lines(rows=HOUSING) -> str:
    return "".join(",".join(f"{value:e}" for value in row) + "\n" for row in rows)


def test_california_housings_archive(tmp_path):
    members = {
        "CaliforniaHousing/cal_housing.domain": b"longitude: continuous.",
        "CaliforniaHousing/cal_housing.data": housing_lines().encode(),
    }
    source = load_source("california_housing", files=[tar(tmp_path / "cal_housing.tgz", members)])
    # The first record of scikit-learn's fetch_california_housing.
    first = [8.3252, 41.0, 6.98412698, 1.02380952, 322.0, 2.55555556, 37.88, -122.23]
    np.testing.assert_allclose(source.training.features[0], first, rtol=1e-8)
    assert source.training.features.shape == (3, 8)
    assert source.training.labels.tolist() == [1, 0, 0]  # the median is not above itself
    assert source.training.labels.dtype == np.int64
    check_what_is_known(source)


def test_california_housings_table(tmp_path, caplog):
    path = tmp_path / "housing.csv"
    header = "ocean_proximity," + COLUMNS.replace("housing_median_age", "housingMedianAge")
    blank = HOUSING[1][:4] + HOUSING[1][5:]
    lines = [f"NEAR BAY,{line}" for line in housing_lines().splitlines()]
    lines.insert(
        1, "INLAND," + ",".join(map(str, blank[:4])) + ",," + ",".join(map(str, blank[4:]))
    )
    path.write_text("\r\n".join([header, *lines, ""]))
    source = load_source("california_housing", files=[path])
    assert len(source.training) == 3
    np.testing.assert_allclose(source.training.features[1, [0, 4]], [8.3014, 2401.0])
    assert "1 rows without total_bedrooms are left out" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (COLUMNS + "\n" + housing_lines() + "1,2,3,4,5,6,7,x,9\n", "line 5: median_income .* 'x'"),
        (COLUMNS + "\n1,2,3,4,5,6,7,8,\n", "line 2: median_house_value must be a number, not ''"),
        (COLUMNS + "\n1,2,3,4,5,6,7,8,nan\n", "line 2: median_house_value must be a number"),
        (COLUMNS + "\n1,2,3,4,5,6,0,8,9\n", "line 2: households must be above 0"),
        (COLUMNS + "\n1,2,3\n", "line 2 has 3 columns; 9 are needed"),
        (COLUMNS + "\n", "there are no records"),
        (housing_lines(), "the first line names no column longitude"),
        ("", "the first line names no column longitude"),
    ],
)
def test_wrong_california_housings_are_named(tmp_path, text, message):
    path = tmp_path / "housing.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=f"housing.csv: {message}"):
        load_source("california_housing", files=[path])


def test_wrong_california_housing_archives_are_named(tmp_path):
    members = {"cal_housing.data": housing_lines(HOUSING * 1000).encode()}
    good = tar(tmp_path / "cal_housing.tgz", members)
    latin = tmp_path / "housing.csv"
    latin.write_bytes(b"\xff\xfe")
    for path, message in (
        (halved(good), "cannot be read whole"),
        (
            tar(tmp_path / "other.tgz", {"a": b""}),
            "has no member cal_housing.data; is it the",
        ),
        (latin, "is not UTF-8 text"),
    ):
        with pytest.raises(InputError, match=message):
            load_source("california_housing", files=[path])


@real
def test_real_california_housing():
    path = DATA / "california_housing/housing.csv"
    source = load_source("california_housing", files=[path])
    raw = pd.read_csv(path).dropna()
    expected = pd.DataFrame(
        {
            "MedInc": raw.median_income,
            "HouseAge": raw.housing_median_age,
            "AveRooms": raw.total_rooms / raw.households,
            "AveBedrms": raw.total_bedrooms / raw.households,
            "Population": raw.population,
            "AveOccup": raw.population / raw.households,
            "Latitude": raw.latitude,
            "Longitude": raw.longitude,
        }
    )
    assert len(source.training) == 20_640 - 207
    np.testing.assert_allclose(source.training.features, expected, rtol=1e-12)
    above = raw.median_house_value > raw.median_house_value.median()
    np.testing.assert_array_equal(source.training.labels, above.astype(int))
    assert 0.49 < source.training.labels.mean() <= 0.5


# Purchase100


@pytest.fixture(scope="module")
def purchases():
    return purchase100_synthetic(num_records=70, seed=0)


def purchase_lines(source, end="\n") -> list[str]:
    pairs = zip(source.training.labels + 1, source.training.features, strict=True)
    return [f"{label},{','.join(map(str, bits))}{end}" for label, bits in pairs]


def test_every_purchase_group_has_its_class(tmp_path):
    path = tmp_path / "purchase.csv"
    path.write_text("".join(f"{label}{',0' * 600}\n" for label in range(100, 0, -1)))
    source = load_source("purchase100", files=[path])
    check_what_is_known(source)
    assert source.training.labels.tolist() == list(range(99, -1, -1))


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_purchase100(purchases, tmp_path, end):
    lines = purchase_lines(purchases, end)
    path = tmp_path / "purchase.csv"
    path.write_bytes("".join(lines).encode())
    packed = tar(
        tmp_path / "dataset_purchase.tgz",
        {"._dataset_purchase": b"x", "dataset_purchase": path.read_bytes()},
    )
    for file in (path, packed):
        source = load_source("purchase100", files=[file])
        np.testing.assert_array_equal(source.training.features, purchases.training.features)
        np.testing.assert_array_equal(source.training.labels, purchases.training.labels)
        assert source.kind == "features"
        assert not source.synthetic


def test_purchase100_is_read_in_blocks(purchases, tmp_path, monkeypatch):
    monkeypatch.setattr("dpcanary.datasets.public._BLOCK_BYTES", 4000)
    path = tmp_path / "purchase.csv"
    path.write_text("".join(purchase_lines(purchases)))
    source = load_source("purchase100", files=[path])
    np.testing.assert_array_equal(source.training.features, purchases.training.features)
    path.write_text("".join([*purchase_lines(purchases), "101" + ",0" * 600]))
    with pytest.raises(InputError, match="line 71: the label must be 1 to 100, not '101'"):
        load_source("purchase100", files=[path])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0" + ",0" * 600, "line 5: the label must be 1 to 100, not '0'"),
        ("256" + ",0" * 600, "line 5: the label must be 1 to 100, not '256'"),
        ("" + ",0" * 600, "line 5: the label must be 1 to 100, not ''"),
        ("1" + ",0" * 599 + ",2", "line 5: bit 600 must be 0 or 1, not '2'"),
        ("1,0.5" + ",0" * 599, "line 5: bit 1 must be 0 or 1, not '0.5'"),
        ("1" + ",0" * 599, "line 5: 600 columns in place of a label and 600 bits"),
        ("1" + ",0" * 601, "line 5: 602 columns"),
        ("1" + ",0" * 500 + ",\xff" + ",0" * 99, "line 5: bit 501"),
    ],
)
def test_wrong_purchase100s_are_named(purchases, tmp_path, line, message):
    lines = purchase_lines(purchases)
    lines[4] = line + "\n"
    path = tmp_path / "purchase.csv"
    path.write_bytes("".join(lines).encode("latin-1"))
    with pytest.raises(InputError, match=f"purchase.csv: {message}"):
        load_source("purchase100", files=[path])
    packed = tar(tmp_path / "dataset_purchase.tgz", {"dataset_purchase": path.read_bytes()})
    with pytest.raises(InputError, match=f"dataset_purchase.tgz: {message}"):
        load_source("purchase100", files=[packed])


def test_wrong_purchase100_files_are_named(purchases, tmp_path):
    header = ["label" + ",bit" * 600 + "\n", *purchase_lines(purchases)]
    packed = tar(tmp_path / "dataset_purchase.tgz", {"a": "".join(header).encode()})
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "blank.csv").write_bytes(b"\n\n")
    for path, message in (
        (packed, "line 1: the label must be 1 to 100, not 'label'"),
        (halved(packed), "cannot be read whole"),
        (tar(tmp_path / "none.tgz", {}), r"none.tgz has no file; is it the right archive"),
        (tmp_path / "empty.csv", r"empty.csv is not Purchase100|are no records"),
        (tmp_path / "blank.csv", r"blank.csv is not Purchase100|are no records"),
    ):
        with pytest.raises(InputError, match=message):
            load_source("purchase100", files=[path])


def test_synthetic_purchases_are_a_prefix_of_more():
    more = load_source("purchase100_synthetic", max_records=9000, seed=3)
    for count in (1, 4096, 5000):
        few = load_source("purchase100_synthetic", max_records=count, seed=3)
        np.testing.assert_array_equal(few.training.features, more.training.features[:count])
        np.testing.assert_array_equal(few.training.labels, more.training.labels[:count])
    other = load_source("purchase100_synthetic", max_records=9000, seed=4)
    assert not np.array_equal(other.training.labels, more.training.labels)
    assert more.synthetic
    check_what_is_known(more)
    assert more.training.features.shape == (9000, 600)
    assert set(np.unique(more.training.features)) == {0, 1}
    counts = np.bincount(more.training.labels, minlength=100)
    assert counts.min() >= 10
    assert counts.max() > 2 * counts.min()


def test_synthetic_purchases_are_learnable_but_not_from_few_records():
    """The accuracy of naive Bayes, a linear model, grows with the data and stays below 1."""
    source = load_source("purchase100_synthetic", max_records=53_000)
    records, one_hot = source.training.features.astype(np.float32), np.eye(100, dtype=np.float32)
    accuracy = []
    for count in (1000, 10_000, 50_000):
        members = one_hot[source.training.labels[:count]]
        bought = (members.T @ records[:count] + 1) / (members.sum(axis=0)[:, None] + 2)
        score = records[50_000:] @ np.log(bought / (1 - bought)).T + np.log(1 - bought).sum(axis=1)
        accuracy.append(np.mean(score.argmax(axis=1) == source.training.labels[50_000:]))
    np.testing.assert_allclose(accuracy, [0.27, 0.78, 0.88], atol=0.05)


# Tables that would be audited without a word


def own(path: Path, **columns) -> Path:
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_a_table_that_is_no_utf8(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("größe,label\n1.5,0\n2.5,1\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"t\.csv: its header is no UTF-8; save the table as UTF"):
        load_source(str(path))
    path.write_bytes("a,label\n1.5,nö\n2.5,ja\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"texts in column 'label' are no UTF-8; save the table"):
        load_source(str(path))


def test_columns_of_one_name_are_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a,b,a,label\n1,2,3,0\n4,5,6,1\n")
    with pytest.raises(InputError, match=r"t\.csv has several columns 'a'; rename or drop them"):
        load_source(str(path))


def test_labels_that_all_differ_or_agree_are_refused(tmp_path):
    features = np.linspace(0, 1, 30)
    for labels in (np.arange(30), [f"name {row}" for row in range(30)]):
        path = own(tmp_path / "t.csv", a=features, label=labels)
        with pytest.raises(InputError, match="every record has a label of its own"):
            load_source(str(path))
    path = own(tmp_path / "t.csv", a=features, label=np.zeros(30, dtype=int))
    with pytest.raises(InputError, match="all records have the same label"):
        load_source(str(path))
    assert load_source(str(own(tmp_path / "t.csv", a=features, label=np.arange(30) // 2)))


def test_identifiers_get_a_warning(tmp_path, caplog):
    labels, counts = np.arange(40) % 2, np.arange(40) // 2
    path = own(tmp_path / "t.csv", id=np.arange(40)[::-1] + 7, a=np.sqrt(counts), label=labels)
    assert load_source(str(path)).training.features.shape == (40, 2)
    [said] = caplog.messages
    assert "t.csv: column 'id' has another whole number in every record" in said
    caplog.clear()
    # Counts repeat, and measured numbers may all differ.
    load_source(str(own(tmp_path / "t.csv", n=counts, a=np.sqrt(np.arange(40)), label=labels)))
    assert caplog.messages == []


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_vast_features(tmp_path, caplog, suffix):
    def written(value: float) -> str:
        features = np.array([value, 1.5, -2.0, 0.25])
        path, labels = tmp_path / f"t{suffix}", np.arange(4) % 2
        if suffix == ".csv":
            return str(own(path, a=features, label=labels))
        np.savez(path, features=features[:, None], labels=labels)
        return str(path)

    load_source(written(1e18))  # nanoseconds of these decades
    assert caplog.messages == []
    load_source(written(-1e30))
    [said] = caplog.messages
    assert {".csv": "column 'a'", ".npz": "array 'features'"}[suffix] in said
    assert "has values up to 1e+30: if they stand for missing ones" in said
    with pytest.raises(InputError, match=r"values up to 1e\+200, which cannot be standardised"):
        load_source(written(1e200))

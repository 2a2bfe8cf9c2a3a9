"""Secrets: what is drawn, its file, where it stands in data, and its ranks."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from scipy.stats import chisquare
from typer.testing import CliRunner

from dpcanary import InputError, Secrets
from dpcanary.cli import app
from dpcanary.estimation import ranks_of_truth
from dpcanary.secrets import Candidates, Law, bits, digits, read_ranking, words
from dpcanary.secrets.ranking import rank_of_truth

TEMPLATE = "The code of customer {index} is {secret}."


def guessing(secrets: Secrets, num_known: float = 0.0):
    """A score that knows the secrets with an index below `num_known`, and nothing of the others."""

    def score(candidates):
        noise = np.random.default_rng(candidates.index).random(len(candidates.values))
        if candidates.index < num_known:
            noise[candidates.values.index(secrets.values[candidates.index])] = 2.0
        return noise

    return score


@pytest.mark.parametrize(("law", "size", "value"), [
    (digits(3), 1000, "039"), (bits(8), 256, "00100111"),
    (words(["ape", "bee", "cat", "dog"]), 4, None),
    (words(["ape", "bee", "emu"], length=4, separator="-"), 81, "bee-bee-bee-ape"),
])  # fmt: skip
def test_laws_have_all_their_values_once_and_draw_them_uniformly(law, size, value):
    values = [law.value(index) for index in range(size)]
    assert law.size == size == len({*values})
    assert all(map(law.has, values))
    assert value is None or values[39] == value
    assert not any(map(law.has, ("", "x", values[0] + values[1], f"{values[0]} ")))
    assert Law.of_json(json.loads(json.dumps(law.to_json()))) == law
    drawn = [law.draw(np.random.default_rng(seed)) for seed in range(2_000)]
    counts = pd.Series(drawn).value_counts().reindex(values, fill_value=0)
    assert chisquare(counts).pvalue > 1e-5


def test_a_seed_repeats_and_the_operating_system_does_not():
    first, second = (Secrets.draw(digits(12), count, seed=7) for count in (5, 9))
    assert first.values == second.values[:5]
    assert first.candidates(3) == second.candidates(3)
    assert len({*first.values, *Secrets.draw(digits(12), 5, seed=8).values}) == 10
    own = Secrets.draw(digits(12), 5)
    assert own.values != Secrets.draw(digits(12), 5).values
    assert own.seed.bit_length() > 64
    # Whoever tries all values must guess the 128 bits of the seed as well.
    assert len({Secrets.draw(bits(1)).digest for _ in range(20)}) == 20


@pytest.mark.parametrize("num_candidates", [2, 30, 700, 1000])
def test_candidates_hold_the_truth_once_and_their_order_says_nothing(num_candidates):
    secrets = Secrets.draw(digits(3), 100, num_candidates=num_candidates, seed=1)
    rows = [secrets.candidates(index).values for index in range(100)]
    assert all(len({*row}) == num_candidates and [*row] == sorted(row) for row in rows)
    positions = [row.index(value) for row, value in zip(rows, secrets.values, strict=True)]
    # Uniform: the mean of 100 has a standard deviation of 0.29 / 10.
    assert abs((np.mean(positions) + 0.5) / num_candidates - 0.5) < 5 * 0.29 / 10


def test_candidates_of_a_sampler_are_drawn_by_it_before_training():
    def law(generator):
        return "rare" if generator.random() < 0.1 else "frequent"

    secrets = Secrets.draw(law, 50, num_candidates=20, seed=0)
    others = [value for row in secrets.alternatives for value in row]
    assert len(others) == 50 * 19
    # 950 draws: 5 standard deviations.
    assert abs(others.count("rare") / 950 - 0.1) < 5 * (0.09 / 950) ** 0.5
    assert secrets.law is None
    # A score that always prefers the frequent value shows nothing: ties count against it.
    ranking = secrets.rank(lambda candidates: [value == "frequent" for value in candidates.values])
    assert ranking.estimate(delta=1e-6).epsilon_lower == 0
    assert ranking.ranks.min() > 10


def test_copies_of_the_truth_count_by_their_least_score():
    """A score that breaks ties by place must not gain by the place of the first copy."""
    secrets = Secrets.draw(lambda generator: "Ann", num_candidates=100, seed=0)
    assert secrets.rank(lambda candidates: -np.arange(100)).ranks.tolist() == [100]
    some = Candidates(0, ("Ann", "Ann", "Bob", "Eve"), ("",) * 4)
    assert rank_of_truth([4, 2, 3, 1], some, "Ann") == (3, 1.0)
    assert rank_of_truth([4, 2, 3, 1], some, "Bob") == (2, 1.0)


def test_the_file_is_read_as_it_was_written_and_never_replaced(tmp_path):
    path = tmp_path / "apart/secrets.json"
    for secrets in (
        Secrets.draw(digits(6), 20, template=TEMPLATE),
        Secrets.draw(lambda generator: f"é{generator.integers(9)}", 3, num_candidates=4),
        Secrets.of_values([0, 1, 1], words(["0", "1"]), names=["a", "b", "c"]),
    ):
        secrets.write(path)
        assert Secrets.read(path) == Secrets.read(path, digest=secrets.digest) == secrets
        assert Secrets.read(path, digest=f"sha256:{secrets.digest.upper()}") == secrets
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(InputError, match="exists: secrets that were drawn are not replaced"):
            secrets.write(path)
        with pytest.raises(InputError, match=f"{'0' * 64} was committed to"):
            Secrets.read(path, digest="0" * 64)
        path.unlink()
    assert not [*path.parent.iterdir()]


@pytest.mark.parametrize(("key", "changed"), [
    ("values", ["000", "001"]), ("num_candidates", 999), ("law", None), ("seed", "4"),
    ("time", "2020-01-01T00:00:00+00:00"), ("template", f"{TEMPLATE} "),
])  # fmt: skip
def test_a_file_with_any_change_is_refused(key, changed, tmp_path):
    path = tmp_path / "secrets.json"
    secrets = Secrets.draw(digits(3), 2, template=TEMPLATE, seed=3)
    secrets.write(path)
    content, body = json.loads(path.read_text()), secrets._body()
    assert body[key] != changed
    for text, digest, message in (
        (content | {"secrets": body | {key: changed}}, None, "changed since the secrets were draw"),
        (content | {"sha256": "0"}, secrets.digest, "it says 0; the secrets are those"),
        ({}, None, "is no file of secrets"),
    ):
        path.write_text(json.dumps(text))
        with pytest.raises(InputError, match=message):
            Secrets.read(path, digest=digest)


def test_texts_hold_each_secret_as_often_as_copies_say():
    secrets = Secrets.draw(digits(4), 30, template=TEMPLATE, seed=0)
    texts = [f"text {index}" for index in range(300)]
    inserted = secrets.insert(texts, copies=3)
    assert sorted(inserted) == sorted([*texts, *secrets.records() * 3])
    assert inserted == secrets.insert(texts, copies=3)
    indices = np.flatnonzero([text.startswith("The code") for text in inserted])
    assert abs(indices.mean() / len(inserted) - 0.5) < 5 * 0.29 / 90**0.5
    for index, (record, value) in enumerate(zip(secrets.records(), secrets.values, strict=True)):
        assert record == f"The code of customer {index} is {value}."
    named = Secrets.draw(digits(4), 2, template="{name}: {secret} {{}}", names=["Ada", "Bob"])
    assert named.records()[1] == f"Bob: {named.values[1]} {{}}"


def test_columns_of_tables_hold_the_secrets_in_their_rows():
    secrets = Secrets.draw(digits(3), 4, seed=0)
    frame = pd.DataFrame({"age": range(10), "code": [0] * 10}, index=range(100, 110))
    filled = secrets.insert_into_table(frame, "code", as_type=int)
    rows, codes = secrets.rows(10), [int(value) for value in secrets.values]
    assert filled["code"].iloc[rows].tolist() == codes
    assert (filled["code"].drop(filled.index[rows]) == 0).sum() == 6
    assert (frame["code"] == 0).all()
    assert (filled["age"] == frame["age"]).all()
    whole = secrets.insert_into_table(frame.head(4), "new")
    assert whole["new"].tolist() == [*secrets.values]
    array = np.zeros((10, 2))
    assert secrets.insert_into_table(array, 1, as_type=float)[rows, 1].tolist() == codes
    assert not array.any()


def test_ranks_exposures_and_bounds(tmp_path):
    secrets = Secrets.draw(digits(4), 40, num_candidates=1000, seed=0)
    ranking = secrets.rank(guessing(secrets, num_known=30))
    assert (ranking.ranks[:30] == 1).all()
    assert ranking.exposures[:30] == pytest.approx(np.log2(1000))
    assert ranking.ranks[30:].min() > 1
    assert 5 < ranking.estimate(delta=1e-6).epsilon_lower < 8.1  # the latter: 30 of 40 expected
    assert ranking.estimate(delta=1e-6, num_guesses=20).epsilon_lower > 7  # the surest are right
    assert ranking.check_uniform().p_low < 1e-6
    nothing = secrets.rank(guessing(secrets))
    assert nothing.estimate(delta=1e-6).epsilon_lower == 0
    assert nothing.check_uniform().p_value > 0.01
    ranking.write(tmp_path / "ranks.tsv")
    again = read_ranking(tmp_path / "ranks.tsv")
    assert (again.ranks == ranking.ranks).all()
    assert again.confidences == pytest.approx(ranking.confidences)
    assert (again.num_candidates, again.digest) == (1000, secrets.digest)


def ranked(scores: list[float]):
    """Five secrets, whose candidates have the same scores."""
    return Secrets.draw(digits(2), 5, seed=0).rank(lambda candidates: scores)


@pytest.mark.parametrize("value", [0.0, -np.inf])
def test_ties_count_against_the_audit(value):
    """Infinite scores are ordinary; a difference of two of them is none."""
    ranking = ranked([value] * 100)
    assert (ranking.ranks == 100).all()
    assert (ranking.confidences == 0).all()


def templated(template: str, *names: str):
    return lambda: Secrets.draw(digits(4), 2, template=template, names=names)


def of_arms(*values: str, **options: int):
    return lambda: Secrets.of_values(values, words(["treated", "control"]), **options)


CODES = digits(3)


def inserted(table: object, column: str | int, law: Law = CODES, as_type: type = str):
    return lambda: Secrets.draw(law, 4, seed=0).insert_into_table(table, column, as_type=as_type)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: Law(("a",), 1), "at least two symbols"),
    (lambda: Law(("a", "a"), 1), "all of them different"),
    (lambda: Law(("a", ""), 1), "not empty"),
    # Values would not be uniform: a, ba and ab, a read alike; baaab is b, ab and ba, b.
    (lambda: Law(("a", "ab"), 2), "several lengths need a separator"),
    (lambda: Law(("a", "a b"), 2, " "), "contains the separator"),
    (lambda: Law(("b", "ba", "ab"), 2, "aa"), "'aa' begins within symbol 'ba'"),
    (lambda: Law(("a", "b"), 0), "length is 0"),
    (lambda: Secrets.draw(lambda generator: 7), "the sampler drew 7"),
    (of_arms("treated", "placebo"), "'placebo' cannot have been drawn by this law"),
    (of_arms(), "there are no secrets"),
    (of_arms("treated", num_candidates=3), "the law has 2 values"),
    (of_arms("treated", seed=-1), "seed is -1"),
    (templated("The code of customer {index}."), "has no {secret}"),
    (templated("The code is {secret}."), "need {index} or {name}"),
    (templated("{name}: {secret}"), "give names"),
    (templated("{name}: {secret}", "Ada", "Ada"), "as many names, all different"),
    (templated("{index} {secret} {}"), "write other braces twice"),
    (templated("{index} {secret"), "write other braces twice"),
    (templated("{index} {secret:04d}"), "changes the secret"),
    (templated("{index} {secret:.2}"), "changes the secret"),
    (templated("{index} {secret!r}"), "changes the secret"),
    (inserted(np.zeros((10, 2)), "code"), "give a column's index, not 'code'"),
    (inserted(np.zeros((10, 2)), 2), r"of shape \(10, 2\): it has no column 2"),
    (inserted(np.zeros((10, 2)), -3), "it has no column -3"),
    (inserted(np.zeros(10), 0), "it has no column 0"),
    (inserted(np.zeros((10, 2)), 0, words(["a", "b"])), "cannot hold the secrets"),
    (inserted(np.zeros((10, 2), int), 0, digits(30), int), "cannot hold the secrets"),
    (inserted(np.zeros((10, 2)), 0, digits(30), int), r"becomes .*e\+"),
    (inserted(pd.DataFrame({"code": range(10)}), "new"), "no column 'new'"),
    (inserted(pd.DataFrame({"code": range(3)}), "code"), "4 secrets for 3 rows"),
    (lambda: ranked([np.nan] * 100), "a score of secret 0 is NaN"),
    (lambda: ranks_of_truth(scores=[[0.1, 0.2], [0.3]], truth=[0, 0]), "secrets have as many cand"),
    (lambda: ranks_of_truth(scores=np.ma.masked_array([[1, 2]], [[0, 1]]), truth=[0]), "masked"),
    (lambda: ranked([0.0] * 99), r"has shape \(99,\).*each of the 100 candidates"),
])  # fmt: skip
def test_what_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def command(*arguments: object, status: int = 0) -> str:
    """The output without line breaks."""
    done = CliRunner().invoke(app, ["secrets", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == status, done.output
    return " ".join((done.stdout if status == 0 else done.output).split())


def test_the_command_draws_and_inserts(tmp_path):
    path, text, table = (tmp_path / name for name in ("secrets.json", "train.txt", "train.csv"))
    answer = json.loads(command("draw", path, "--digits", 5, "--template", TEMPLATE, "--json"))
    secrets = Secrets.read(path, digest=answer["digest"])
    counts = {"num_secrets": 100, "values": 10**5, "num_candidates": 10**4}
    assert answer.items() >= counts.items()
    text.write_text("one\ntwo\n")
    command("insert", path, text, tmp_path / "out.txt", "--copies", 2)
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert sorted(lines) == sorted(["one", "two", *secrets.records() * 2])
    table.write_text("age,code\n" + "1.50,none\n" * 120)
    command("insert", path, table, tmp_path / "out.csv", "--column", "code")
    filled = pd.read_csv(tmp_path / "out.csv", dtype=str)
    assert (filled["age"] == "1.50").all()
    assert filled["code"].iloc[secrets.rows(120)].tolist() == [*secrets.values]
    assert (filled["code"] == "none").sum() == 20
    insert = partial(command, "insert", path, table, "x.csv", status=2)
    assert "--column is for tables" in insert()
    assert "--copies is for texts" in insert("--column", "code", "--copies", 2)
    (tmp_path / "words.txt").write_text("ape\nbee\ncat\n")
    words_path = tmp_path / "words.json"
    drawn = command("draw", words_path, "--words", tmp_path / "words.txt", "--num-words", 2)
    assert "100 secrets of 9 values each" in drawn
    assert Secrets.read(words_path).digest in drawn
    assert "give one of --digits, --bits and" in command("draw", "x.json", status=2)
    with pytest.raises(InputError, match="are not replaced"):
        command("draw", path, "--bits", 8)


def test_the_command_changes_no_record_but_those_of_secrets(tmp_path):
    path, text = tmp_path / "secrets.json", tmp_path / "train.txt"
    secrets = Secrets.draw(digits(3), 2, template="{index} {secret}", seed=0)
    secrets.write(path)
    records = ['{"t": "a\u2028b"}', "c\x0cd\x85e\x1cf", "", "g"]
    text.write_text("\n".join(records), encoding="utf-8")
    command("insert", path, text, tmp_path / "out.txt")
    lines = (tmp_path / "out.txt").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert sorted(lines) == sorted([*records, *secrets.records()])
    text.write_bytes(b"a\r\n")
    command("insert", path, text, tmp_path / "out.txt")
    assert "a" in (tmp_path / "out.txt").read_bytes().decode().split("\n")


@pytest.mark.parametrize(("content", "filled"), [
    ("x\nr\n\ns\n", "x\n000\n\"\"\n001\n"),
    ("\ufeffx,y,y\r\nr,01.50,\"a,\u2028b\"\r\n\r\ns,,NA\r\n",
     "x,y,y\n000,01.50,\"a,\u2028b\"\n001,,NA\n"),
    ("y,x\n1,r,\n2,s,\n", "row 1 has 3 cells, and the header names 2 columns"),
    ("x,y\nr,1\ns\n", "row 2 has 1 cells"),
    ("x,x\nr,1\ns,2\n", "several columns 'x'"),
    ("x\n\"r\ns\n", "is not a table"),
    ("", "is not a table"),
])  # fmt: skip
def test_the_command_changes_no_cell_but_those_of_secrets(tmp_path, content, filled):
    path, table, output = (tmp_path / name for name in ("secrets.json", "in.csv", "out.csv"))
    Secrets.of_values(["000", "001"], digits(3), seed=0).write(path)
    table.write_text(content, encoding="utf-8", newline="")
    insert = partial(command, "insert", path, table, output, "--column", "x")
    if "\n" not in filled:
        with pytest.raises(InputError, match=filled):
            insert()
        return
    insert()
    assert output.read_text(encoding="utf-8") == filled


def test_the_command_ranks_by_a_checkpoint_and_the_bound_is_read_from_its_table(tmp_path):
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokens = "[UNK]", "[MASK]", "code", "00", "01", "10", "11", *(f"n{index}" for index in range(9))
    vocabulary = {token: place for place, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder, path, ranks = (tmp_path / name for name in ("model", "secrets.json", "ranks.tsv"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]")
    fast.save_pretrained(folder)
    sizes = {"n_positions": 8, "n_embd": 8, "n_layer": 1, "n_head": 1, "vocab_size": len(tokens)}
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    secrets = Secrets.draw(bits(2), 9, template="code n{index} {secret}", seed=0)
    secrets.write(path)
    both = ["--model", folder, "--reference", folder]
    answer = command("rank", path, *both[:2], "--output", ranks)
    ranking = read_ranking(ranks)
    assert f"{(ranking.ranks == 1).sum()} of 9 secrets are ranked first among 4" in answer
    assert ranking.digest == secrets.digest
    same = command("rank", path, *both, "--output", ranks, "--json")
    assert json.loads(same)["ranked_first"] == 0  # all scores are 0
    assert (read_ranking(ranks).ranks == 4).all()
    asked = ["estimate", "--ranks", str(ranks), "--delta", "1e-6", "--json"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert json.loads(done.stdout)["bounds"][0]["epsilon_lower"] == 0
    bare = tmp_path / "bare.json"
    Secrets.draw(bits(2)).write(bare)
    with pytest.raises(InputError, match="has no template"):
        command("rank", bare, "--model", folder)

"""Published audits are configs that the command finds by name, in any folder."""

from pathlib import Path

import pytest

from dpcanary.commands.plan import plan
from dpcanary.errors import InputError
from dpcanary.installation import config_named, published_names
from dpcanary.settings.parsing import parse_experiment, read_config

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "config/published").glob("*.yaml"))


def test_every_config_of_the_folder_has_a_name():
    assert published_names() == [f"published/{path.stem}" for path in FILES]
    assert "published/annamalai-digits" in published_names()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_name_is_found_in_any_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = config_named(Path(f"published/{path.stem}"))
    assert found.samefile(path)
    # Results of two published audits never share a folder.
    assert parse_experiment(read_config(found)).settings.experiment == path.stem


def test_a_file_of_the_user_is_taken_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = Path("published/annamalai-digits")
    own.parent.mkdir()
    own.write_text("")
    assert config_named(own) == own


@pytest.mark.parametrize("given", ["mine.yaml", "published/mine.yaml", "config/demo.yaml"])
def test_other_paths_stay_as_they_are(given, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert config_named(Path(given)) == Path(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("published/anamalai-digits", "did you mean 'published/annamalai-digits'?"),
        ("published", "known: published/annamalai-"),
        ("published/annamalai-digits/more", "there is no published audit"),
    ],
)
def test_unknown_names_are_refused_with_those_that_there_are(given, message):
    with pytest.raises(InputError) as refused:
        config_named(Path(given))
    assert message in str(refused.value)


def test_plans_take_names_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="there is no published audit"):
        plan(config=Path("published/nothing"))

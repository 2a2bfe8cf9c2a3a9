"""Published audits are configs that the command finds by name, in any folder."""

from pathlib import Path

import pytest

from dpcanary.commands.plan import plan
from dpcanary.core.installation import config_named, published_names
from dpcanary.errors import InputError
from dpcanary.experiment.config_parsing import parse_experiment, read_config

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "config/published").glob("*.yaml"))


def test_configs_of_the_folder_are_found_by_name_in_any_folder_and_other_paths_stay(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert "published/annamalai-digits" in published_names()
    assert published_names() == [f"published/{path.stem}" for path in FILES]
    for path in FILES:
        config = config_named(Path(f"published/{path.stem}"))
        assert config.samefile(path)
        # Results of two published audits never share a folder.
        assert parse_experiment(read_config(config)).settings.experiment == path.stem
    own = Path("published/annamalai-digits")
    own.parent.mkdir()
    own.write_text("")
    for name in ("mine.yaml", "published/mine.yaml", "config/demo.yaml", own):
        assert config_named(Path(name)) == Path(name)


@pytest.mark.parametrize("function", [config_named, lambda path: plan(config=path)])
@pytest.mark.parametrize(("name", "message"), [
    ("published/anamalai-digits", r"did you mean 'published/annamalai-digits'\?"),
    ("published", "known: published/annamalai-"),
    ("published/annamalai-digits/more", "there is no published audit"),
])  # fmt: skip
def test_unknown_names_are_refused_with_those_that_there_are(name, message, function):
    with pytest.raises(InputError, match=message):
        function(Path(name))

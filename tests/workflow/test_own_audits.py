"""`dpcanary audit`, a whole run on a user's own table and model, and its report in a browser."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
from axe_core_python.selenium import Axe
from PIL import Image
from running import DPCANARY, PATIENCE, SNAKEFILE, Plan, environment, printed_by, shared, wait_for
from selenium import webdriver
from typer.testing import CliRunner

from dpcanary import AuditResults, audit
from dpcanary.audits.release_making import release_results
from dpcanary.audits.verification import verify_results
from dpcanary.audits.workflow_run import run_config
from dpcanary.cli import app
from dpcanary.errors import InputError

pytestmark = pytest.mark.long

MODEL = """
import os
import time

from torch import nn
from my_layers import WIDTH


def build_model():
    if "DPCANARY_BY_COMMAND" in os.environ:  # in a job
        time.sleep(float(os.environ.get("SLOW", 0)))
        assert "FAILS" not in os.environ
        print("a line of the model")
    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 3))
"""
SETTINGS = {
    "label_column": "species", "model": "my_models:build_model",
    "canary": ["gradient", "mislabeled"], "num_records": 30, "sample_rate": 0.5,
    "noise_multiplier": 1.0, "num_steps": 10, "num_runs": 40, "delta": 1e-5, "device": "cpu",
}  # fmt: skip
OPTIONS = ["audit", "--features", "flowers.csv"]
for name, value in SETTINGS.items():
    for item in value if isinstance(value, list) else [value]:
        OPTIONS += [f"--{name.replace('_', '-')}", str(item)]
COMMAND = [*DPCANARY, *OPTIONS]
CHROMIUM = shutil.which("chromium")
WINDOWS = [(*size, scheme) for size in ((1280, 800), (390, 844)) for scheme in ("light", "dark")]


def write_inputs(folder: Path) -> None:
    species = np.repeat(["setosa", "versicolor", "virginica"], 40)
    features = np.random.default_rng(0).normal(size=(120, 4)) + np.arange(120)[:, None] // 40 * 2.0
    frame = pd.DataFrame(features, columns=[*"abcd"]).assign(species=species)
    frame.to_csv(folder / "flowers.csv", index=False)
    (folder / "my_models.py").write_text(MODEL)
    (folder / "my_layers.py").write_text("WIDTH = 5\n")
    (folder / "random.py").write_text("raise ImportError('not the one of Python')\n")


@pytest.fixture(scope="session")
def study() -> Path:
    """A folder with the user's table and module, in which the audit has run and has a report."""

    def write(folder: Path) -> None:
        write_inputs(folder)
        (folder / "printed.txt").write_text(printed_by(COMMAND, folder))
        printed_by([*DPCANARY, "report", "results/flowers"], folder)

    return shared("own-audit", write)


@pytest.fixture
def again(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(study, tmp_path / "study", symlinks=True)
    monkeypatch.chdir(tmp_path / "study")
    return tmp_path / "study"


def planned(folder: Path, name: str = "flowers") -> Plan:
    options = ["--snakefile", SNAKEFILE, "--configfile", f"results/{name}/audit.yaml"]
    return Plan.of(folder, *options, "--cores", "1", PYTHONSAFEPATH="1")


def test_the_data_progress_and_results_are_printed(study):
    printed = (study / "printed.txt").read_text()
    assert "\x1b" not in printed  # no control characters without a terminal
    assert "a line of the model" not in printed
    logs = (path.read_text() for path in (study / "results/flowers/logs").rglob("*.log"))
    assert any("a line of the model" in log for log in logs)
    words = " ".join(printed.split())
    for expected in (
        "flowers.csv, 120 records x 4 features, 3 classes",
        r"30 of them are private \(equally many of each class\)",
        r"\d+ of \d+ jobs",
        "audit-gradient 40 ",
        "add/remove and substitute: accounted upper bounds",
        r"Target record: row \d+ of the source, counted from 0 \(class [a-z]+\)",
        "Features are standardised by the auxiliary records",
        r"Test accuracy [\d.]+%",
    ):
        assert re.search(expected, words), expected


def test_a_finished_audit_that_is_called_again_prints_its_results(again):
    """On stdout, once, as the first time; nothing runs again, from a script either."""
    summary = again / "results/flowers/summary.tsv"
    before = summary.stat().st_mtime_ns
    options = {"env": environment(), "capture_output": True, "check": True, "text": True}
    printed = subprocess.run(COMMAND, cwd=again, **options).stdout
    [row] = re.findall("^audit-gradient .*", printed, re.MULTILINE)
    assert re.findall("^audit-gradient .*", (again / "printed.txt").read_text(), re.M) == [row]
    assert "Figures: results/flowers/figures/" in printed
    audits = json.loads(CliRunner().invoke(app, [*OPTIONS, "--json"]).stdout)["audits"]
    assert [row["canary"] for row in audits] == ["gradient", "mislabeled"]
    own = AuditResults(again / "results/flowers").summary
    # Whoever names no canary gets those of the command; batches of 15 of the 30 private records.
    of_command = ("canary", "sample_rate", "num_steps")
    settings = {name: value for name, value in SETTINGS.items() if name not in of_command}
    settings |= {"batch_size": 15, "epochs": 5}
    pd.testing.assert_frame_equal(audit("flowers.csv", **settings).summary, own)
    assert summary.stat().st_mtime_ns == before


def test_a_table_that_changes_is_read_again_whatever_its_time_stamp(again):
    assert planned(again).jobs == {}
    table = again / "flowers.csv"
    times, lines = table.stat(), table.read_text().splitlines()
    table.write_text("\n".join([*lines[:-1], "9.5,9.5,9.5,9.5,virginica"]) + "\n")
    os.utime(table, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert {"prepare_dataset", "train_shard"} <= planned(again).jobs.keys()
    verification = verify_results(again / "results/flowers", cores=2)
    assert verification.exit_status == 6
    assert re.search(r"(?<!/)flowers\.csv has sha256", str(verification))  # not that of the copy
    table.unlink()  # older results do not stand under the name of a source that is missing
    with pytest.raises(InputError, match=r"datasets\.data: flowers\.csv does not exist"):
        run_config(again / "results/flowers/audit.yaml")


def test_a_table_of_people_and_a_folder_of_images_become_audits(tmp_path):
    """A table with gaps and texts by a preparation, which may be edited; images as pixels.

    The table's results can be verified, and run from a release where the table is not.
    """
    rng, rows = np.random.default_rng(0), 60
    table = pd.DataFrame({"sex": rng.choice(["f", "m"], rows), "id": np.arange(rows)})
    table["age"] = np.where(np.arange(rows) % 7, rng.integers(20, 80, rows), np.nan)
    table.assign(label=rng.choice(["ill", "well"], rows)).to_csv(tmp_path / "a.csv", index=False)
    for number in range(40):
        (tmp_path / f"photos/{number % 2}").mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (9, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"photos/{number % 2}/{number}.png")
    options = ["--delta", "1e-5", "--noise-multiplier", "1", "--num-steps", "2", "--num-runs", "8"]
    options += ["--canary", "gradient", "--device", "cpu", "--cores", "2"]
    photos = ["photos", "--image-size", "32", "--model", "convnet"]
    for name, source in (("a", ["a.csv", "--prepare"]), ("photos", photos)):
        printed = printed_by([*DPCANARY, "audit", "--features", *source, *options], tmp_path)
        assert re.search(r"audit +gradient +8 ", printed)
        prepared = "Its columns became numbers by results/a/preparation.yaml."
        assert (prepared in " ".join(printed.split())) == (name == "a")
        assert planned(tmp_path, name).jobs == {}
    verification = verify_results(tmp_path / "results/a")
    assert {file.status for file in verification.files} == {"same"}
    released = tmp_path / "elsewhere"  # where the table is not
    config = release_results(tmp_path / "results/a", output=released / "a.zip").config
    run_config(config, folder=released)
    preparation = tmp_path / "results/a/preparation.yaml"
    assert "categories: [f, m]" in preparation.read_text()
    preparation.write_text(re.sub(r"fill: [\d.]+", "fill: 33.0", preparation.read_text()))
    assert {"prepare_dataset", "train_shard"} <= planned(tmp_path, "a").jobs.keys()


def test_results_in_a_notebook(again, tmp_path):
    results = AuditResults(again / "results/flowers")
    assert [*results.summary["canary"]] == ["gradient", "mislabeled"]
    assert len(results.bounds) == 20
    assert {*results.figures} == {"epsilon_by_step", "score_histograms", "trade_off"}
    assert "audit-gradient" in repr(results)
    assert "<table" in results._repr_html_()
    results.plot(tmp_path / "overview.png")
    assert (tmp_path / "overview.png").stat().st_size > 10_000
    # One that was drawn of other numbers is not shown.
    drawn = results.figures["trade_off"]
    drawn.write_bytes(re.sub(b"(figures/trade_off:)(.)", rb"\1x", drawn.read_bytes(), count=1))
    assert {*results.figures} == {"epsilon_by_step", "score_histograms"}


def slow_audit(folder: Path, *before: str, **options) -> subprocess.Popen:
    """The command, once the job that takes an hour runs, in a folder that has its inputs."""
    write_inputs(folder)
    options |= {"cwd": folder, "env": environment(SLOW="3600")}
    child = subprocess.Popen([*before, *COMMAND], **options)
    wait_for(lambda: [*folder.glob("results/flowers/logs/train_reference/*.log")], child)
    time.sleep(1.0)
    return child


def snakemake_of(child: subprocess.Popen) -> psutil.Process:
    """It is not the only process that the command has started."""
    children = psutil.Process(child.pid).children()
    return next(process for process in children if "dpcanary.workflow.start" in process.cmdline())


def test_an_interrupted_audit_goes_on_and_a_failed_job_says_why_last(tmp_path):
    """Ctrl-C ends it at once and without a traceback, and so the same command goes on."""
    with slow_audit(tmp_path, stderr=subprocess.PIPE, text=True) as child:
        child.send_signal(signal.SIGINT)
        _, said = child.communicate(timeout=PATIENCE)  # not the hour that the job would last
    assert child.returncode == 130
    assert not re.search("Traceback|RuleException|Error in rule", said)
    assert said.count("The same command goes on from here") == 1
    lines = printed_by(COMMAND, tmp_path, fails=True, FAILS="yes").splitlines()
    assert "model my_models:build_model fails: AssertionError" in " ".join(lines[-8:])
    assert "RuleException" not in " ".join(lines)
    ending = " ".join(lines[-3:])
    assert "error: audit.yaml has not been finished; see above. Mend the cause first." in ending


@pytest.mark.exhaustive
def test_a_killed_command_ends_its_workflow_and_never_runs_twice(tmp_path):
    """`kill -9` of the command alone: Snakemake and its jobs end."""
    said = tmp_path / "said.txt"
    with said.open("w") as file, slow_audit(tmp_path, stdout=file, stderr=file) as child:
        snakemake = snakemake_of(child)
        below = snakemake.children(recursive=True)
        snakemake.suspend()  # until it notices, it holds the lock
        child.kill()
    refused = printed_by(COMMAND, tmp_path, fails=True)
    assert f"another run (process {snakemake.pid}) works on" in refused
    snakemake.resume()
    assert len(below) >= 3  # the server of jobs, a job's shell, and the job
    _, left = psutil.wait_procs([snakemake, *below], timeout=50)  # before it is killed
    # One that has ended stays listed where the first process of a container asks for no status.
    assert [process for process in left if process.status() != psutil.STATUS_ZOMBIE] == []
    printed = said.read_text()
    assert "The command was killed: its jobs end now." in printed
    assert not re.search("RuleException|Traceback", printed)


@pytest.mark.exhaustive
def test_nohup_goes_on_when_the_terminal_is_closed(tmp_path):
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with slow_audit(tmp_path, "nohup", **silent, start_new_session=True) as child:
        snakemake = snakemake_of(child)
        os.killpg(child.pid, signal.SIGHUP)
        time.sleep(3.0)  # it looks for its command every second
        assert child.poll() is None
        assert snakemake.is_running()
        child.send_signal(signal.SIGTERM)
        assert child.wait(PATIENCE) == 130


@pytest.fixture(scope="module")
def report(study: Path) -> Path:
    return study / "results/flowers/report.html"


def test_the_report_loads_nothing_and_says_what_the_tables_say(report):
    text = report.read_text()
    assert not re.findall(r"(?:src|href)=[\"'](?!data:|#)|@import|url\(", text)
    row = AuditResults(report.parent).summary.iloc[0]
    floor, ceil = np.floor(100 * row["shown"]) / 100, np.ceil(100 * row["substitute"]) / 100
    for words in (f"≥ {floor:,.2f}", f"≤ {ceil:,.2f}", "it was not chosen by its result"):
        assert words in text
    # The target is a row of the user's own file, with its label.
    target = re.search(r"row (\d+) of the source, counted from 0 \(class ([a-z]+)\)", text)
    assert pd.read_csv(report.parents[2] / "flowers.csv")["species"][int(target[1])] == target[2]


ARGUMENTS = """--headless=new --no-sandbox --disable-gpu --no-first-run --disable-sync
    --disable-background-networking --disable-component-update --hide-scrollbars"""


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    if not CHROMIUM or not shutil.which("chromedriver"):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ARGUMENTS.split():
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    driver = webdriver.Chrome(options=options, service=service)
    yield driver
    driver.quit()


def emulate(browser: webdriver.Chrome, media: str, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})


def style_of(browser: webdriver.Chrome, selector: str, *names: str) -> list[str]:
    script = """const style = getComputedStyle(document.querySelector(arguments[0]));
        return arguments[1].map(name => style.getPropertyValue(name))"""
    return browser.execute_script(script, selector, names)


def brightness(color: str) -> float:
    return float(np.mean([int(part) for part in re.findall(r"\d+", color)[:3]]))


@pytest.fixture(params=WINDOWS, ids=str)
def page(browser, report, request) -> webdriver.Chrome:
    width, height, scheme = request.param
    emulate(browser, "", scheme)
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    browser.get(report.as_uri())
    return browser


IS_TOO_WIDE = "return document.documentElement.scrollWidth > innerWidth"
SMALL_TEXTS = """return [...document.querySelectorAll('main *')].filter(e => e.childNodes.length &&
    [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim()) &&
    parseFloat(getComputedStyle(e).fontSize) < 14).map(e => e.outerHTML)"""


def test_the_page_answers_at_once_is_legible_and_dark_where_wanted(page, request):
    width, height, scheme = request.node.callspec.params["page"]
    rectangles = [value.rect for value in page.find_elements("css selector", ".bars .value")]
    assert len(rectangles) == 4  # accounted twice, shown for a crafted gradient and a record
    for rectangle in rectangles:
        assert 0 < rectangle["y"] < height - rectangle["height"]
        assert rectangle["x"] + rectangle["width"] <= width
    assert not page.execute_script(IS_TOO_WIDE)
    assert page.get_log("browser") == []
    assert page.execute_script(SMALL_TEXTS) == []
    paper, ink = style_of(page, "body", "background-color", "color")
    assert (brightness(paper) < brightness(ink)) == (scheme == "dark")
    assert style_of(page, ".scroll", "background-color") == ["rgb(255, 255, 255)"]
    figures = page.find_elements("css selector", ".scroll img")
    assert len(figures) == 4
    for place in (figure.rect for figure in figures):
        assert 0 <= place["x"] < place["x"] + place["width"] <= width
    box = page.find_element("css selector", ".enlarge")
    assert box.is_displayed() == (width < 500)
    if box.is_displayed():
        box.click()
        assert figures[0].rect["width"] > 2 * width
        assert not page.execute_script(IS_TOO_WIDE)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_bars_are_seen_on_paper(browser, report, scheme):
    """Printers leave backgrounds out, unless they are asked to keep them; borders stay."""
    emulate(browser, "print", scheme)
    browser.get(report.as_uri())
    paper, ink = style_of(browser, "body", "background-color", "color")
    assert brightness(ink) < brightness(paper)
    names = ("print-color-adjust", "border-right-width", "border-top-color")
    for kind in ("add-remove", "shown", "substitute"):
        *kept, color = style_of(browser, f".{kind} .fill", *names)
        assert kept == ["exact", "4px"]
        assert brightness(color) < 100
    emulate(browser, "", "light")


def test_a_screen_reader_and_the_keyboard_reach_everything(page):
    """Contrast, names, headings, roles: the rules of axe-core."""
    assert Axe().run(page)["violations"] == []
    reached = [""]
    while reached[-1] != "button" and len(reached) < 40:
        page.switch_to.active_element.send_keys("\ue004")  # Tab
        reached.append(page.switch_to.active_element.tag_name)
    assert {"a", "summary", "div", "button"} <= {*reached}
    page.switch_to.active_element.send_keys("\ue007")  # Enter
    assert page.find_element("id", "copied").text.startswith(("Copied", "Selected"))

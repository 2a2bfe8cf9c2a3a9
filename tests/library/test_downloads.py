"""Downloads from a real server: the whole, expected file, or an error and nothing left behind."""

import hashlib
import http.server
import json
import threading
from pathlib import Path

import pytest
from running import call

from dpcanary.core.files import read_json, write_text
from dpcanary.core.program_messages import progress
from dpcanary.data.dataset_catalogue import Entry, entry_of, read_catalogue
from dpcanary.data.downloads import fetch
from dpcanary.data.record_source import KNOWN_SOURCES
from dpcanary.errors import InputError

ROOT = Path(__file__).parents[2]
CATALOGUE = ROOT / "config/datasets.yaml"
TWO_OF_A_NAME = CATALOGUE.read_text().replace("SST-2.zip\n", "cal_housing.tgz\n")
CONTENT = bytes(range(256)) * 1000
SIZE = len(CONTENT)
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, or fails in the way that the path names; `asked` lists the requests."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        port = self.server.server_address[1]
        moved = {"/moved": f"http://127.0.0.1:{port}/good", "/unsafe": "ftp://127.0.0.1/good"}
        moved["/gone"] = moved["/unsafe"]
        is_tired = self.path == "/tired" and len(self.server.asked) < 3
        if self.path in moved:
            self.send_response(301 if self.path == "/gone" else 302)
            self.send_header("Location", moved[self.path])
        elif self.path in ("/missing", "/down") or is_tired:
            self.send_response(404 if self.path == "/missing" else 503)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(CONTENT)))
            if self.headers["Accept-Encoding"] != "identity":
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(CONTENT[: 100_000 if self.path == "/truncated" else None])
            return
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.asked = []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.fixture
def get(server, tmp_path):
    def download(path="/good", size=SIZE, sha256=SHA256, port=None, **options) -> Path:
        url = f"http://127.0.0.1:{port or server.server_address[1]}{path}"
        words = {"licence": "free to use", "citation": "Somebody (2001)"}
        entry = Entry(url=url, file="data.tgz", bytes=size, sha256=sha256, **words)
        output = tmp_path / "out/data.tgz"
        chosen = {"lock": tmp_path / "lock.json", "schemes": ("http",), "wait": 0.01, **options}
        with progress(size or 0, "B") as bar:
            fetch(entry, source="some", output=output, bar=bar, **chosen)
        return output

    return download


def test_a_download_comes_whole_at_another_attempt(get, server, tmp_path, caplog, capsys):
    with caplog.at_level("INFO"):
        output = get("/tired")
    assert output.read_bytes() == CONTENT
    assert [path.name for path in output.parent.iterdir()] == ["data.tgz"]
    assert not (tmp_path / "lock.json").exists()
    assert server.asked == ["/tired"] * 3
    assert "attempt 2 of 3: 127.0.0.1 refuses: 503" in caplog.text
    assert "some: free to use. To cite: Somebody (2001)" in caplog.text
    assert "256k/256k" in capsys.readouterr().err


@pytest.mark.parametrize(("path", "options", "message", "times"), [
    ("/good", {"sha256": "0" * 64}, f"sha256 {SHA256}, and 0+ was expected: it was damaged", 1),
    ("/good", {"size": 5}, "has 256000 bytes, and 5 were expected: it was damaged", 1),
    ("/truncated", {}, r"broke off after \d+ bytes .*put it into the data folder", 3),
    ("/truncated", {"sha256": None, "size": None}, "broke off after", 3),
    ("/missing", {}, "127.0.0.1 refuses: 404 .*download http.* into the data folder", 1),
    ("/down", {}, "127.0.0.1 refuses: 503", 3),
    ("/unsafe", {}, "ftp://127.0.0.1/good is not read: only http is safe", 1),
    ("/gone", {}, "ftp://127.0.0.1/good is not read: only http is safe", 1),
    ("/good", {"schemes": ("https",)}, "is not read: only https is safe", 0),
])  # fmt: skip
def test_a_failing_download_leaves_what_was_there(
    path, options, message, times, get, server, tmp_path
):
    write_text(tmp_path / "out/data.tgz", "before")
    with pytest.raises(InputError, match=message):
        get(path, **options)
    assert server.asked == [path] * times
    files = [*(tmp_path / "out").iterdir()]
    assert [(file.name, file.read_text()) for file in files] == [("data.tgz", "before")]


def test_no_network_is_named(get, server, tmp_path, refuses):
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as other:
        free = other.server_address[1]
    message = (
        r"cannot reach 127.0.0.1 \([^()]*refused\); run again, or download http://127.* yourself "
        r"and put it into the data folder \(data_folder in the config, .* DPCANARY_DATA\) as data"
    )
    refuses(message, get, port=free)
    assert server.asked == [*(tmp_path / "out").glob("*")] == []


@pytest.mark.parametrize("place", ["data.tgz", "some/data.tgz"])
def test_a_mirror_goes_first_and_must_be_right(get, server, tmp_path, place, refuses):
    mirror = tmp_path / "mirror" / place
    mirror.parent.mkdir(parents=True)
    for content, message in (
        (CONTENT[:-1], f"{mirror} has 255999 bytes, and 256000 were expected"),
        (CONTENT[:-1] + b"x", f"{mirror} has sha256 .* was expected: .* Remove it"),
    ):
        mirror.write_bytes(content)
        refuses(message, get, data_folder=tmp_path / "mirror")
        assert [*(tmp_path / "out").glob("*")] == []
    mirror.write_bytes(CONTENT)
    assert get(data_folder=tmp_path / "mirror").read_bytes() == CONTENT
    assert server.asked == []
    mirror.unlink()  # an empty folder is no mirror, and redirections are followed
    assert get("/moved", data_folder=tmp_path / "mirror").read_bytes() == CONTENT
    assert server.asked == ["/moved", "/good"]


def test_an_unknown_hash_is_kept_beside_others_and_may_not_change(get, tmp_path, caplog, refuses):
    lock, other = tmp_path / "lock.json", {"other.tgz": "abc"}
    lock.write_text(json.dumps(other))
    for _ in range(2):
        assert get(sha256=None, size=None).read_bytes() == CONTENT
    assert read_json(lock) == {"data.tgz": SHA256, **other}
    assert caplog.text.count("first seen") == 1
    lock.write_text(json.dumps({"data.tgz": "abc"}))
    refuses(r"data.tgz is .*, but .* records abc", get, sha256=None)
    assert read_json(lock) == {"data.tgz": "abc"}


def test_the_program_puts_the_file_in_its_place(tmp_path, capsys):
    (tmp_path / "dataset_purchase.tgz").write_bytes(CONTENT)
    paths = {"catalogue": CATALOGUE, "lock": tmp_path / "lock", "output": tmp_path / "out"}
    call("download_file", source="purchase100", data_folder=tmp_path, **paths)
    assert (tmp_path / "out").read_bytes() == CONTENT
    assert read_json(tmp_path / "lock") == {"dataset_purchase.tgz": SHA256}
    with pytest.raises(InputError, match="no download for source 'cifar'; did you mean 'cifar10'"):
        call("download_file", source="cifar", **paths)


def test_the_catalogue_has_every_source_that_is_downloaded():
    from sklearn.datasets import _california_housing

    catalogue = read_catalogue(CATALOGUE)
    assert set(catalogue) == {
        name for name, source in KNOWN_SOURCES.items() if not source.is_generated
    }
    assert all(entry.url.startswith("https://") for entry in catalogue.values())
    assert entry_of("sst2", catalogue).file == "SST-2.zip"
    entry, remote = catalogue["california_housing"], _california_housing.ARCHIVE
    assert (remote.filename, remote.url, remote.checksum) == (entry.file, entry.url, entry.sha256)


@pytest.mark.parametrize(("text", "message"), [
    ("a: {url: 'https://x', fil: y}", "a.fil: Extra inputs are not permitted"),
    ("a: {url: 'https://x', file: ../y}", "a.file: String should match"),
    ("a: {url: x}", "a.url: String should match"),
    ("a: [", "is not YAML"),
    (TWO_OF_A_NAME, "two sources have the name cal_housing.tgz"),
    (None, "does not exist"),
])  # fmt: skip
def test_a_wrong_catalogue_is_named(tmp_path, text, message, refuses):
    path = tmp_path / "catalogue.yaml"
    if text:
        path.write_text(text)
    refuses(rf"catalogue.yaml.*{message}", read_catalogue, path)

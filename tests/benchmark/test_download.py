"""Paths and URLs with checksums, against a server on this machine."""

import hashlib
import http.server
import threading
from pathlib import Path

import pytest
from benchmark_tools import SHARED

from lrpx.benchmark import download
from lrpx.benchmark.download import Published, fetch, local_file, published
from lrpx.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CONTENT = b"1\tthe keys are here .\n" * 5000
SHA = hashlib.sha256(CONTENT).hexdigest()
GIT_BLOB = hashlib.sha1(b"blob %d\0" % len(CONTENT) + CONTENT).hexdigest()


@pytest.fixture
def server(monkeypatch):
    """A server with one file; ``requests`` lists what was asked for."""
    monkeypatch.setenv("no_proxy", "*")
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append(self.path)
            if not self.path.startswith("/data/set.tsv"):
                self.send_error(404)
                return
            self.send_response(200)
            short = "short" in self.path
            self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            self.wfile.write(CONTENT[:100] if short else CONTENT)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}/data/set.tsv", requests
        httpd.shutdown()
        thread.join()


def test_a_url_with_its_checksum_is_fetched_once(server, tmp_path):
    url, requests = server
    for _ in range(2):
        path = local_file(f"{url}#sha256={SHA.upper()}", tmp_path)
        assert path == tmp_path / "set.tsv"
        assert path.read_bytes() == CONTENT
    assert len(requests) == 1


def test_a_url_with_another_checksum_leaves_nothing(server, tmp_path):
    url, _ = server
    with pytest.raises(InputError, match=f"has sha256 {SHA}, expected {'0' * 64}"):
        local_file(f"{url}#sha256={'0' * 64}", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_url_without_a_checksum_is_refused_and_shows_it(server, tmp_path):
    url, _ = server
    with pytest.raises(InputError, match=f"if that is what you want, give {url}#sha256={SHA}"):
        local_file(url, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_published_file_needs_no_checksum(server, tmp_path, monkeypatch):
    url, requests = server
    known = Published("set", "set.tsv", url, "paper", "licence")
    monkeypatch.setitem(download.PUBLISHED, GIT_BLOB, known)
    path = local_file(url, tmp_path)
    assert published(path) == known
    local_file(url, tmp_path)
    assert len(requests) == 1


@pytest.fixture
def listed(server, monkeypatch):
    """The server's file is one of the published ones."""
    url, requests = server
    monkeypatch.setitem(download.PUBLISHED, GIT_BLOB, Published("set", "set.tsv", url, "paper", "licence"))
    return requests


def test_a_published_file_by_its_name(listed, tmp_path):
    for _ in range(2):
        path = fetch("set", tmp_path)
        assert path == tmp_path / "set.tsv"
        assert path.read_bytes() == CONTENT
    assert len(listed) == 1  # not fetched again


def test_a_published_file_that_has_changed_is_not_kept(server, tmp_path, monkeypatch):
    url, _ = server
    monkeypatch.setitem(download.PUBLISHED, "0" * 40, Published("set", "set.tsv", url, "paper", "licence"))
    with pytest.raises(InputError, match=f"is not set.tsv as published: git calls that file {'0' * 40}"):
        fetch("set", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_ones_own_is_not_replaced(listed, tmp_path):
    (tmp_path / "set.tsv").write_text("mine")
    with pytest.raises(InputError, match=r"set\.tsv is there and is not set\.tsv as published\. Move it"):
        fetch("set", tmp_path)
    assert (tmp_path / "set.tsv").read_text() == "mine"
    assert not listed


def test_all_of_blimp_by_one_name(tmp_path, monkeypatch):
    """Each paradigm comes from its own address, and what is there already is kept."""
    for blob in [blob for blob, file in download.PUBLISHED.items() if file.name != "lgd"]:
        monkeypatch.delitem(download.PUBLISHED, blob)
    contents = {f"https://host/{name}.jsonl": name.encode() for name in ("one", "two")}
    for url, content in contents.items():
        blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        name = content.decode()
        monkeypatch.setitem(download.PUBLISHED, blob, Published(name, name, url, download._BLIMP_PAPER, "CC BY 4.0"))
    asked = []
    monkeypatch.setattr(download, "_download", lambda url: asked.append(url) or contents[url])
    for _ in range(2):
        assert fetch("blimp", tmp_path / "a" / "blimp") == tmp_path / "a" / "blimp"
    assert asked == list(contents)
    assert {path.name: path.read_bytes() for path in (tmp_path / "a" / "blimp").iterdir()} == {
        "one.jsonl": b"one",
        "two.jsonl": b"two",
    }


def test_names_and_folders_that_are_none(tmp_path):
    with pytest.raises(InputError, match=r"no published file is called 'ldg'\. Did you mean 'lgd'\?"):
        fetch("ldg", tmp_path)
    with pytest.raises(InputError, match=r"is no folder\. Make it first: mkdir -p"):
        fetch("lgd", tmp_path / "none")


def test_the_papers_source_is_listed():
    """Its address, and the checksum that git gives the file (``git hash-object lgd_dataset.tsv``)."""
    (blob,) = [blob for blob, file in download.PUBLISHED.items() if file.name == "lgd"]
    assert blob == "3678296e1bbb95a6e4f83e7518b9021601086ea8"
    url = download.PUBLISHED[blob].url
    assert url == "https://raw.githubusercontent.com/yoavg/bert-syntax/master/lgd_dataset.tsv"
    for page in ("docs/benchmark.md", "README.md"):
        assert "lrpx benchmark download lgd" in (ROOT / page).read_text(encoding="utf-8")
    assert url in (ROOT / "docs" / "benchmark.md").read_text(encoding="utf-8")
    if (SHARED / "paper.tex").is_file():
        assert "github.com/yoavg/bert-syntax/blob/master/lgd_dataset.tsv" in (SHARED / "paper.tex").read_text(
            encoding="utf-8"
        )


def test_a_damaged_download_is_fetched_again(server, tmp_path):
    url, requests = server
    (tmp_path / "set.tsv").write_bytes(b"half")
    assert local_file(f"{url}#sha256={SHA}", tmp_path).read_bytes() == CONTENT
    assert len(requests) == 1


def test_an_interrupted_download_is_an_error(server, tmp_path):
    url, _ = server
    with pytest.raises(InputError, match=r"100 of \d+ bytes arrived.*Download it yourself"):
        local_file(f"{url}?short#sha256={SHA}", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_url_that_is_not_there(server, tmp_path):
    url, _ = server
    with pytest.raises(InputError, match=r"404.*give the path of the file"):
        local_file(url.replace("set", "none"), tmp_path)
    with pytest.raises(InputError, match="could not download"):
        local_file("http://127.0.0.1:9/x.tsv", tmp_path)


def test_paths(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(CONTENT)
    assert local_file(str(path), tmp_path) == path
    assert local_file(f"{path}#sha256={SHA}", tmp_path) == path
    assert published(path) is None
    with pytest.raises(InputError, match="it is another file"):
        local_file(f"{path}#sha256={'1' * 64}", tmp_path)
    with pytest.raises(InputError, match="64 hexadecimal digits"):
        local_file(f"{path}#sha256=abc", tmp_path)
    with pytest.raises(InputError, match="not there: give a file"):
        local_file(str(tmp_path / "b.tsv"), tmp_path)
    with pytest.raises(InputError, match="a folder: give a file"):
        local_file(str(tmp_path), tmp_path)

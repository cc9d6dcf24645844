"""Files are written completely or not at all, and read with errors that name the place; optional imports say the extra."""

import errno
import hashlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import lrpx
from lrpx.errors import InputError, LrpxError, import_optional
from lrpx.files import (
    atomic_write,
    check_output,
    json_object,
    read_json,
    read_jsonl,
    save_output,
    sha256,
    update_digest,
    write_json,
    write_text,
)
from lrpx.results.tokens import Token, Unit


def test_a_file_that_fails_half_way_leaves_the_old_one(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, "first")

    def fail():
        with atomic_write(path) as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["a.txt"]


def test_a_path_below_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for call in (lambda path: write_json(path, {}), check_output):
        with pytest.raises(InputError, match=r"cannot be made: \S+file is a file"):
            call(tmp_path / "file" / "a" / "b.json")
    write_json(tmp_path / "a" / "b.json", {})
    assert check_output(tmp_path / "a" / "b.json").is_file()


def test_a_written_file_has_the_usual_mode(tmp_path):
    write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_json_that_is_missing_broken_or_no_object(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(InputError, match="does not exist"):
        read_json(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(InputError, match="holds a JSON list; expected an object"):
        read_json(path)


def test_json_is_readable_text(tmp_path):
    write_json(tmp_path / "a.json", {"é": 1})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "é": 1\n}\n'


def test_a_missing_package_says_which_extra_has_it():
    with pytest.raises(ImportError, match=r"Parsing needs no_such_package: pip install spacy pyarrow"):
        import_optional("no_such_package.part", "Parsing", extra="sva")


def test_who_needs_pyarrow_alone_is_told_to_install_nothing_else(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"Making a benchmark needs pyarrow: pip install pyarrow$"):
        import_optional("pyarrow", "Making a benchmark")


def test_json_lines_come_with_their_places(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"n": 1}\r\n\n  {"n": 2}\n')
    assert list(read_jsonl(path)) == [("a.jsonl, line 1", {"n": 1}), ("a.jsonl, line 3", {"n": 2})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"n": 1}\n{', "a.jsonl, line 2: not JSON"),
        (b"[1]", "a.jsonl, line 1: a JSON list, expected an object"),
        (b"\xff\xfe", "a.jsonl is not UTF-8"),
    ],
)
def test_json_lines_that_cannot_be_read(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        list(read_jsonl(path))


def test_a_json_object_is_not_just_any_json():
    assert json_object('{"a": [1]}') == {"a": [1]}
    for text, message in (("1", "a JSON int, expected an object"), ("{", "not JSON")):
        with pytest.raises(ValueError, match=message):
            json_object(text)


def test_checksums(tmp_path):
    path, content = tmp_path / "a", b"x" * (3 << 20)
    path.write_bytes(content)
    assert sha256(path) == hashlib.sha256(content).hexdigest()
    assert update_digest(hashlib.sha1(b"before"), path) == hashlib.sha1(b"before" + content).hexdigest()


def made():
    """The smallest explanation."""
    return lrpx.Explanation(
        tokens=["a"],
        token_ids=[0],
        units=[Unit(0, 1, "a")],
        relevance=np.ones(1),
        value=1.0,
        residual=0.0,
        target=Token(1, "b", "b"),
        contrast=None,
        position=0,
        method="lrp",
    )


WRITERS = ["to_html", "to_latex", "to_png", "to_pdf", "to_svg", "save"]


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("several", [False, True])
def test_a_missing_folder_is_an_error_that_says_how_to_make_it(writer, several, tmp_path):
    e = made()
    given = lrpx.Explanations([e]) if several else e
    folder = tmp_path / "none"
    with pytest.raises(InputError, match=rf"the folder {folder} does not exist. Make it first: mkdir -p {folder}$"):
        getattr(given, writer)(folder / "map")
    with pytest.raises(InputError, match=r"is a folder\. Give a file name in it"):
        getattr(given, writer)(tmp_path)
    with pytest.raises(InputError, match=f"~ is not expanded here: give {Path.home()}/map$"):
        getattr(given, writer)("~/map")
    folder.mkdir()
    getattr(given, writer)(folder / "map")
    assert (folder / "map").stat().st_size


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_the_file_that_was_there(writer, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "map").write_text("before")
    monkeypatch.setattr(os, "fsync", full)
    for given in (made(), lrpx.Explanations([made()])):
        with pytest.raises(
            LrpxError, match=r"could not write \S+map: No space left on device. What was there before is kept"
        ):
            getattr(given, writer)(tmp_path / "map")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("map", "before")]


def test_a_link_stays_a_link_and_a_mode_stays_as_it_was(tmp_path):
    (tmp_path / "file").write_text("before")
    (tmp_path / "file").chmod(0o600)
    (tmp_path / "link").symlink_to("file")
    made().save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert lrpx.Explanation.load(tmp_path / "file").tokens == ["a"]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no such device here")
def test_a_device_is_written_as_it_is(tmp_path):
    save_output(Path("/dev/null"), "x")
    with pytest.raises(LrpxError, match="could not write /dev/full: No space left on device"):
        save_output(Path("/dev/full"), "x")
    assert Path("/dev/full").is_char_device()


@pytest.mark.parametrize("writer", WRITERS[:-1])
def test_a_name_of_another_format_is_refused(writer, tmp_path):
    e, own = made(), {"to_latex": "tex"}.get(writer, writer[3:])
    with pytest.raises(InputError, match=rf"writes \w+, and 'map.pgn' ends in \.pgn\. Name it map\.{own}\.$"):
        getattr(e, writer)("map.pgn")
    for method, ending in {"to_svg()": "svg", "to_html()": "HTM", "save()": "json"}.items():
        if method != f"{writer}()":
            with pytest.raises(InputError, match=rf"For \.{ending.lower()} use {re.escape(method)}"):
                getattr(e, writer)(f"map.{ending}")
    getattr(e, writer)(tmp_path / f"map.{own.upper()}")
    assert [p.name for p in tmp_path.iterdir()] == [f"map.{own.upper()}"]


def test_what_is_saved_is_not_called_like_a_picture(tmp_path):
    e = made()
    with pytest.raises(InputError, match=r"save\(\) writes JSON, and 'keys.png' ends in .png. For .png use to_png\(\)"):
        e.save("keys.png")
    with pytest.raises(InputError, match=r"ends in .csv. For .csv use to_frame\(\), and pandas writes the table"):
        e.save("keys.csv")
    with pytest.raises(InputError, match=r"ends in .pkl. Name it keys.json"):
        lrpx.Explanations([e]).save("keys.pkl")
    for name in ("keys.json", "keys.json.part", "keys"):
        e.save(tmp_path / name)
        assert lrpx.Explanation.load(tmp_path / name).value == e.value


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is forbidden to root")
def test_a_folder_that_is_write_protected(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="cannot be written: permission denied"):
        check_output(tmp_path / "a")
    tmp_path.chmod(0o700)

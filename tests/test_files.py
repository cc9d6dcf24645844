"""Files are written completely or not at all, and read with errors that name the place; optional imports say the extra."""

import hashlib

import pytest

from lrpx.errors import InputError, import_optional
from lrpx.files import atomic_write, json_object, read_json, read_jsonl, sha256, update_digest, write_json, write_text


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
    with pytest.raises(ImportError, match=r'Parsing needs no_such_package: pip install "lrpx\[sva\]"'):
        import_optional("no_such_package.part", "Parsing")


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

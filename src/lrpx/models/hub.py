"""Look up a model's commit on the Hugging Face Hub, and silence Hugging Face's libraries while loading."""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import InputError
from ..notebook import in_notebook

logger = logging.getLogger("lrpx")


class Pinned(NamedTuple):
    """One state of a model on the Hub."""

    commit: str
    local: bool  # the Hub could not be asked: read from the local cache only


def resolve_commit(
    name: str, revision: str | None, token: str | bool | None, *, hint: str = "", file: str = "config.json"
) -> Pinned:
    """The commit of ``revision`` on the Hub or, if the Hub does not answer, in the local cache.

    All files are then read from this one commit. If the Hub does not answer, transformers is told so; otherwise it
    would try for half a minute itself.

    Args:
        name: An id on the Hub, like ``"gpt2"`` or ``"org/name"``.
        revision: Branch, tag or commit; ``None`` for the main branch.
        token: Token for gated or private models.
        hint: Added to the error if the name may be misspelt.
        file: One that such a repository has.

    Raises:
        InputError: There is no such model or revision, it is gated, or the Hub cannot be reached, and the local cache
            does not have it.
    """
    import huggingface_hub
    from huggingface_hub import errors

    logger.info("looking for %s on the Hub", name)
    # The Hub's own errors, no network, a full disk; the latter is httpx's, or httpx2's.
    failed = (OSError, errors.HTTPError)
    problem: Exception | None = None
    try:
        huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(name, file, revision=revision), token=token)
    except (errors.HFValidationError, errors.RevisionNotFoundError, errors.EntryNotFoundError) as error:
        raise InputError(_explain(error, name, revision, hint)) from error
    except failed as error:  # no answer, or no access
        problem = error
    try:
        found = huggingface_hub.hf_hub_download(
            name, file, revision=revision, token=token, local_files_only=problem is not None
        )
    except failed as error:
        problem = problem or error
        raise InputError(_explain(problem, name, revision, hint)) from problem
    commit = Path(
        found
    ).parent.name  # .../snapshots/<commit>/config.json: huggingface.co/docs/huggingface_hub/guides/manage-cache
    return Pinned(commit, local=problem is not None)


def adapter_on_hub(name: str, revision: str | None, token: str | bool | None, config: str) -> Pinned | None:
    """The commit of an adapter of PEFT, whose configuration is the file ``config``; ``None`` if there is none."""
    try:
        return resolve_commit(name, revision, token, file=config)
    except InputError:
        return None


def fetched(name: str, state: Pinned, token: str | bool | None, files: Sequence[str]) -> Path | None:
    """The first of ``files`` that the repository has, in the local cache."""
    import huggingface_hub
    from huggingface_hub import errors

    for file in files:
        with contextlib.suppress(OSError, errors.HTTPError, errors.HFValidationError):
            found = huggingface_hub.hf_hub_download(
                name, file, revision=state.commit, token=token, local_files_only=state.local
            )
            return Path(found)
    return None


def _explain(error: Exception, name: str, revision: str | None, hint: str) -> str:
    """What went wrong on the Hub, and what to type next."""
    from huggingface_hub import errors

    where, hint = f"{name} is not a folder here, and", hint and f" {hint}"
    if isinstance(error, errors.HFValidationError):
        return f"{where} not a valid id on the Hub (like gpt2 or org/name).{hint}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{name} is on the Hub, but has no revision {revision!r}. Leave it out for the newest."
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return (
            f"{name} is on the Hub, but has no config.json, so it is not a model that transformers loads. "
            "If it holds GGUF files, download one and give its path."
        )
    if isinstance(error, errors.GatedRepoError):
        return (
            f"{where} on the Hub it is gated. Ask for access on its page there, "
            "then type `hf auth login` or pass token=..."
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            f"{where} the Hub has no such model, or it is private.{hint} "
            "Check the spelling; for a private model type `hf auth login` or pass token=..."
        )
    offline = isinstance(error, errors.OfflineModeIsEnabled)
    why = "offline mode is on (HF_HUB_OFFLINE)" if offline else f"the Hub cannot be reached ({error})"
    return (
        f"{where} {why}, and it is not in the local cache.{hint} "
        "Go online, check the spelling, or give a folder on this disk."
    )


def bars_wanted(progress: bool) -> bool:
    """Whether to show progress bars: in a terminal or a notebook, unless the user turned them off.

    Both the argument and ``HF_HUB_DISABLE_PROGRESS_BARS=1`` turn them off.
    """
    from huggingface_hub import constants

    terminal = sys.stderr is not None and sys.stderr.isatty()
    return progress and constants.HF_HUB_DISABLE_PROGRESS_BARS is not True and (terminal or in_notebook())


@contextlib.contextmanager
def quiet(*, bars: bool) -> Iterator[None]:
    """Keep Hugging Face's log lines and, unless ``bars``, progress bars off the screen while this thread loads.

    Lines below ERROR go to the logger ``lrpx`` at DEBUG instead. No logging level is changed, so two threads can load
    at the same time; afterwards everything is as before.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
    from transformers.utils import logging as hf_logging

    thread = threading.get_ident()

    def divert(record: logging.LogRecord) -> bool:
        if record.thread != thread or record.levelno >= logging.ERROR or record.name.startswith("lrpx"):
            return True
        if not vars(record).get("seen_by_lrpx"):  # a record passes here once per handler
            record.seen_by_lrpx = True
            logger.debug("%s: %s", record.name, record.getMessage())
        return False

    with contextlib.ExitStack() as undo:
        for library in ("transformers", "huggingface_hub"):
            for handler in logging.getLogger(library).handlers:
                if type(handler) is logging.StreamHandler:  # the user's handlers still get every line
                    handler.addFilter(divert)
                    undo.callback(handler.removeFilter, divert)
        accelerate = logging.getLogger("accelerate.big_modeling")  # has no handler of its own
        accelerate.addFilter(divert)
        undo.callback(accelerate.removeFilter, divert)
        # If HF_HUB_DISABLE_PROGRESS_BARS is set, leave it to the user; Hugging Face warns when a program changes it.
        if not bars and constants.HF_HUB_DISABLE_PROGRESS_BARS is None and hf_logging.is_progress_bar_enabled():
            if are_progress_bars_disabled():  # enabling transformers' bars also enables the Hub's, which were off
                undo.callback(disable_progress_bars)
            hf_logging.disable_progress_bar()
            undo.callback(hf_logging.enable_progress_bar)
        yield

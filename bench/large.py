"""A model larger than a GPU: time and memory per GPU of explaining one text with it, and whether the parts sum to the value.

    python bench/large.py                                     # the shape of a Llama with 70 billion parameters, bfloat16
    python bench/large.py --layers 40 --checkpoint --tokens 4096
    python bench/large.py --cpu                               # a tiny one, half in memory and half on disk: only that it runs

1. The model is made without numbers, and a balanced device map is inferred from its shapes.
2. Every part gets its random weights on its own device, so that nothing ever has to fit into the CPU's memory.
3. accelerate divides it by hooks, as ``from_pretrained(device_map="auto")`` would.
4. Each method explains the same text; the first call is not timed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from typing import Any

import accelerate
import torch
from accelerate.utils import get_balanced_memory
from common import environment, heading, parser_of, report, summary, table
from transformers import LlamaConfig, LlamaForCausalLM

import lrpx
from lrpx.models.device_map import describe_division, place_of

LLAMA_70B: dict[str, Any] = {
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
}
TINY: dict[str, Any] = {
    **LLAMA_70B,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 200,
}
BLOCK = "LlamaDecoderLayer"
GIB = 2**30


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--cpu", action="store_true", help="as --smoke: a tiny model on the CPU, half of it offloaded to disk"
    )
    parser.add_argument("--layers", type=int, help="fewer blocks than the shape has")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--methods", nargs="+", default=["attnlrp", "lrp", "alti-logit"])
    parser.add_argument("--checkpoint", action="store_true", help="recompute each block in the backward pass")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    args.cpu = args.smoke = args.cpu or args.smoke
    if not args.cpu and not torch.cuda.is_available():
        parser.error("no GPU here. Type --cpu for a tiny model on the CPU.")
    if args.cpu:
        args.device, args.tokens = "cpu", min(args.tokens, 24)

    shape = dict(TINY if args.cpu else LLAMA_70B)
    if args.layers:
        shape["num_hidden_layers"] = args.layers
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        model, places = build(shape, getattr(torch, args.dtype), folder if args.cpu else None)
        results: dict[str, Any] = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "division": describe_division(model),
            "device_map": {name: str(place) for name, place in places.items()},
            "seconds_to_build": time.perf_counter() - start,
            "weights_gib": memory(torch.cuda.memory_allocated),
        }
        print(f"{results['parameters'] / 1e9:.3g} billion parameters: {results['division']}")
        ids = torch.randint(
            10, shape["vocab_size"], (args.tokens,), generator=torch.Generator().manual_seed(0)
        ).tolist()
        results["methods"] = {name: measure(model, ids, name, args) for name in args.methods}
    facts = environment(args.device)
    print(f"\n{heading(facts)}, {args.dtype}, {args.tokens} tokens\n\n{shown(results['methods'])}")
    found = report("large", args, facts, results)
    if not args.json:
        print(json.dumps(found["results"]["methods"]))


def build(shape: dict[str, Any], dtype: torch.dtype, folder: str | None) -> tuple[Any, dict[str, Any]]:
    """The model, divided over all GPUs (with ``folder``: between the CPU and disk), and its device map."""
    config = LlamaConfig(**shape)
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            model = LlamaForCausalLM(config).eval()
    finally:
        torch.set_default_dtype(torch.float32)
    if folder is None:
        memory = get_balanced_memory(model, no_split_module_classes=[BLOCK], dtype=dtype)
        memory = {place: size for place, size in memory.items() if place not in ("cpu", "disk")}
        places = accelerate.infer_auto_device_map(model, memory, no_split_module_classes=[BLOCK], dtype=dtype)
        if {"cpu", "disk"} & set(places.values()):
            raise SystemExit("the model does not fit on the GPUs. Type fewer --layers.")
    else:
        half = shape["num_hidden_layers"] // 2
        blocks = {f"model.layers.{i}": "cpu" if i < half else "disk" for i in range(shape["num_hidden_layers"])}
        places = {
            "model.embed_tokens": "cpu",
            **blocks,
            "model.norm": "disk",
            "model.rotary_emb": "cpu",
            "lm_head": "disk",
        }
    for number, (path, place) in enumerate(places.items()):
        device = torch.device("cpu" if place == "disk" else place)
        generator = torch.Generator(device).manual_seed(number)
        part = model.get_submodule(path)
        part.to_empty(device=device)
        with torch.no_grad():
            for weight in part.parameters():
                if weight.ndim == 1:  # a norm's gain
                    weight.fill_(1)
                else:
                    weight.normal_(0, 0.02, generator=generator)
    # Its buffers are no weights: they are computed when it is made.
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(config).to(place_of("model.rotary_emb", places)).eval()
    return (
        accelerate.dispatch_model(
            model,
            places,
            main_device=None if folder else place_of("model.embed_tokens", places),
            offload_dir=folder,
            skip_keys="past_key_values",
            force_hooks=True,
        ),
        places,
    )


def measure(model: Any, ids: list[int], method: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds, peak GiB per GPU above the weights, and how the parts sum."""
    explainer = lrpx.Explainer(model, method=method, checkpoint=True if args.checkpoint else None)

    def run() -> Any:
        return explainer(ids, target=11, contrast=12)

    explanation = run()
    before = memory(torch.cuda.memory_allocated)
    if torch.cuda.is_available():
        torch.cuda.init()  # a card that holds nothing yet has no statistics to reset
    for place in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(place)
    seconds = []
    for _ in range(args.repeats):
        synchronise()
        start = time.perf_counter()
        run()
        synchronise()
        seconds.append(time.perf_counter() - start)
    highest = memory(torch.cuda.max_memory_allocated)
    parts = [explanation.relevance, *explanation.components.values()]
    return {
        "seconds": summary(seconds),
        "peak_gib": highest,
        "peak_above_weights_gib": [high - low for high, low in zip(highest, before, strict=True)],
        "value": explanation.value,
        "sum_of_parts": float(sum(part.sum() if hasattr(part, "sum") else part for part in parts)),
        "sum_of_magnitudes": float(sum(abs(part).sum() if hasattr(part, "sum") else abs(part) for part in parts)),
        "residual": explanation.residual,
        "provenance": explanation.provenance["device"],
    }


def memory(of: Any) -> list[float]:
    """GiB on each GPU."""
    return [of(place) / GIB for place in range(torch.cuda.device_count())]


def synchronise() -> None:
    for place in range(torch.cuda.device_count()):
        torch.cuda.synchronize(place)


def shown(methods: dict[str, Any]) -> str:
    rows = [["method", "median", "peak above weights, worst GPU", "value", "sum of parts", "off, of magnitudes"]]
    for name, found in methods.items():
        above = max(found["peak_above_weights_gib"], default=float("nan"))
        off = abs(found["value"] - found["sum_of_parts"]) / found["sum_of_magnitudes"]
        numbers = (f"{found['value']:.4g}", f"{found['sum_of_parts']:.4g}", f"{off:.1e}")
        rows.append([name, f"{found['seconds']['median_s']:.3f} s", f"{above:.2f} GiB", *numbers])
    return table(rows)


if __name__ == "__main__":
    main()

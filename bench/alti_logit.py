"""Time and memory of ALTI-Logit against a plain forward pass, by number of tokens.

    python bench/alti_logit.py --model path/to/mini-gpt2                              # 16, 64, 128 and 250 tokens, CPU
    python bench/alti_logit.py --shape gpt2-xl --device cuda --tokens 12 512          # random weights
    python bench/alti_logit.py --smoke --device cpu

The two are timed in turn; ``common.py`` says how. "tensor" is the same method with a tensor of heads x T x T x width in each
layer, for comparison; on the CPU it is run too (``--no-tensor`` leaves it out).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any
from unittest import mock

import common
import torch
from common import in_turns, peak
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from lrpx.methods.alti import contributions as mixing
from lrpx.methods.alti import logit as alti_logit
from lrpx.methods.alti import residual_trace as trace
from lrpx.text.batching import Batch

SHAPES: dict[str, Callable[[], Any]] = {
    "tiny": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=1200, n_positions=32, n_embd=16, n_layer=2, n_head=2)),
    "gpt2": lambda: GPT2LMHeadModel(GPT2Config()),
    "gpt2-xl": lambda: GPT2LMHeadModel(GPT2Config(n_embd=1600, n_layer=48, n_head=25)),
    "llama-3.2-1b": lambda: LlamaForCausalLM(LlamaConfig(**common.LLAMA_1B)),
}


def main() -> None:
    parser = common.parser_of(__doc__)
    parser.add_argument("--model", help="name or path of a decoder")
    parser.add_argument("--shape", choices=SHAPES, help="random weights instead")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tokens", type=int, nargs="+", default=[16, 64, 128, 250])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tensor", action=argparse.BooleanOptionalAction, help="run the T x T x width variant too")
    parser.add_argument("--kernel", action=argparse.BooleanOptionalAction, default=True, help="use Triton on a GPU")
    args = parser.parse_args()
    if args.smoke:
        args.model, args.shape, args.tokens, args.repeats = None, "tiny", [8, 16], 2
    if (args.model is None) == (args.shape is None):
        parser.error("give --model or --shape")
    torch.manual_seed(0)
    dtype = getattr(torch, args.dtype)
    with torch.device(args.device):
        model = SHAPES[args.shape]() if args.shape else AutoModelForCausalLM.from_pretrained(args.model)
    model = model.to(args.device, dtype).eval()
    facts = common.environment(args.device)
    print(f"{args.shape or args.model}, {args.dtype}, batch {args.batch}; {common.heading(facts)}")
    kernel = mock.patch.object(mixing, "KERNEL_BYTES", mixing.KERNEL_BYTES if args.kernel else 1 << 62)
    with kernel, torch.no_grad():
        rows = [measured(model, tokens, args) for tokens in args.tokens]
    common.report("alti_logit", args, facts, {"rows": rows})
    print(common.table([list(rows[0]), *([f"{value:.4g}" for value in row.values()] for row in rows)]))


def measured(model: Any, tokens: int, args: argparse.Namespace) -> dict[str, float]:
    """The figures for one number of tokens."""
    with_tensor = args.tensor if args.tensor is not None else args.device == "cpu"
    batch = random_batch(model, tokens, args.batch)
    runs: dict[str, Callable[[], Any]] = {
        "forward": lambda: model(**batch.inputs, use_cache=False),
        "alti": lambda: alti_logit.explain(model, batch),
    }
    seconds = timed(runs, args.repeats, model.device)
    memory = {name: peak(run, model.device) for name, run in runs.items()}
    row = {
        "tokens": tokens,
        "forward ms": seconds["forward"] * 1e3,
        "ALTI-Logit ms": seconds["alti"] * 1e3,
        "ratio": seconds["alti"] / seconds["forward"],
        "forward MiB": memory["forward"],
        "ALTI-Logit MiB": memory["alti"],
    }
    if with_tensor:
        one_by_one = mock.patch.dict(trace.STACK_BYTES, {model.device.type: 0})
        with mock.patch.object(alti_logit, "kept", kept_with_tensor), one_by_one:
            naive = timed({"tensor": runs["alti"]}, max(2, args.repeats // 5), model.device)
            row |= {"tensor ms": naive["tensor"] * 1e3, "tensor MiB": peak(runs["alti"], model.device)}
    return row


def random_batch(model: Any, tokens: int, size: int) -> Batch:
    ids = torch.randint(1000, min(20000, model.config.vocab_size), (size, tokens), device=model.device)
    full = torch.full((size,), tokens - 1, device=model.device)
    return Batch(
        inputs={"input_ids": ids, "attention_mask": torch.ones_like(ids)},
        spans=[slice(0, tokens)] * size,
        positions=full,
        targets=torch.full_like(full, 10),
        contrasts=torch.full_like(full, 11),
    )


def kept_with_tensor(layers: mixing.Layers, length: int, causal: bool) -> Tensor:
    """As ``mixing.kept``, with the transformed vectors of all pairs and heads in memory."""
    weights = layers.attention.weights(slice(0, length))  # [B, H, i, j]
    values = mixing.transformed_values(layers, slice(0, length))  # [B, j, H, d]
    moved = torch.einsum("bhij,bjhd->bhijd", weights, values).sum(1) * layers.scale  # [B, i, j, d]
    moved += torch.diag_embed(layers.own.transpose(1, 2)).permute(0, 2, 3, 1)
    kept = layers.output.abs().sum(-1, keepdim=True) - (layers.output.unsqueeze(2) - moved).abs().sum(-1)
    return kept.tril()


def timed(runs: dict[str, Callable[[], Any]], repeats: int, device: torch.device) -> dict[str, float]:
    """Median seconds of each run, taking turns, after three rounds to warm up."""
    contenders = {name: lambda _, run=run: run() for name, run in runs.items()}
    in_turns(contenders, range(3), device)
    found = in_turns(contenders, range(repeats), device)
    return {name: common.summary(seconds)["median_s"] for name, seconds in found.items()}


if __name__ == "__main__":
    main()

"""What the rules cost over a forward pass where tokens are mixed by linear attention or a scan, on PyTorch's own operations.

    python bench/linear_attention.py                      # a small model of every make, one CPU thread
    python bench/linear_attention.py --device cuda --width 1024 --tokens 512
    python bench/linear_attention.py --smoke --device cpu

Contenders take turns, so that a ratio is of one run: a forward pass without gradient, Gradient x Input written by hand, and the
same inside ``lrpx.propagate`` with each rule set. On a CPU, figures are the process's own CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import common
import torch
from common import Sample, ms
from overhead import RULE_SETS, forward, gradient_x_input, in_turns, propagated

KINDS = ["linear_attention", "full_attention"] * 2
HEADS = {f"linear_num_{side}_heads": 4 for side in ("key", "value")}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {**HEADS, "layer_types": KINDS},
    "olmo_hybrid": {**HEADS, "layer_types": KINDS},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "minimax": {"layer_types": KINDS, "num_local_experts": 2, "num_experts_per_tok": 1},
    "mamba": {},
    "mamba2": {"num_heads": 8, "n_groups": 1, "chunk_size": 64},
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_chunk_size": 64},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "rwkv": {},
    "xlstm": {"num_blocks": 4, "num_heads": 4},
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args(argv)
    if args.smoke:
        args.families, args.width, args.tokens, args.rounds = ["lfm2"], 64, 12, 2
    if args.device == "cpu":
        torch.set_num_threads(1)
    ids = torch.randint(10, 500, (args.tokens,), generator=torch.Generator().manual_seed(0)).tolist()
    sample, results = Sample(ids, args.tokens - 1, 11, 13), {}
    for name in args.families:
        contenders = contenders_of(built(name, args.width, args.device))
        for run in contenders.values():
            run(sample)
        seconds = in_turns(contenders, sample, args.rounds, args.device)
        results[name] = {
            "contenders": {each: common.summary(times) for each, times in seconds.items()},
            "over_forward": {each: common.ratio(times, seconds["forward"]) for each, times in seconds.items()},
        }
    found = common.report("linear_attention", args, common.environment(args.device), results)
    show(found)
    return found


def built(name: str, width: int, device: str) -> Any:
    """A model of four blocks with random weights."""
    import transformers

    sizes: dict[str, Any] = {"hidden_size": width, "intermediate_size": 4 * width, "num_hidden_layers": 4}
    sizes |= {"vocab_size": 512, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 4096}
    sizes |= {f"linear_{side}_head_dim": width // 4 for side in ("key", "value")} | {"head_dim": width // 4}
    sizes |= {"embedding_dim": width, "block_ff_dim": 4 * width, "context_length": 4096}
    sizes |= {"pad_token_id": 0, "eos_token_id": 1, "use_cache": False, **FAMILIES[name]}
    config = transformers.AutoConfig.for_model(name, **sizes)
    return common.made(lambda: transformers.AutoModelForCausalLM.from_config(config), device, torch.float32)


def contenders_of(model: Any) -> dict[str, Callable[[Sample], Any]]:
    contenders: dict[str, Callable[[Sample], Any]] = {
        "forward": partial(forward, model),
        "Gradient x Input": partial(gradient_x_input, model),
    }
    return contenders | {f"propagate, {rules}": partial(propagated, model, rules) for rules in RULE_SETS}


def show(found: dict[str, Any]) -> None:
    args, results = found["arguments"], found["results"]
    rows = [["", "forward", *(f"{name} / forward" for name in ("Gradient x Input", *RULE_SETS))]]
    for name, figures in results.items():
        over = list(figures["over_forward"].values())[1:]
        rows.append([name, ms(figures["contenders"]["forward"]["median_s"]), *(f"{ratio:.2f}" for ratio in over)])
    print(
        f"width {args['width']}, float32, one text of {args['tokens']} tokens; {common.heading(found['environment'])}"
    )
    print(common.table(rows))


if __name__ == "__main__":
    main()

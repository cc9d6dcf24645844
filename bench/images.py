"""What ``compile=True`` saves for images: an image classifier and a vision-language model, eager and compiled.

    python bench/images.py --rounds 10            # ViT-base on an image of 224 x 224; a LLaVA of 6 + 6 blocks of width 512
    python bench/images.py --smoke --device cpu

Both runners take turns, so that a ratio is of one run. Each explains by AttnLRP, at the input of the first block, one image or
one text with an image. Tracing and compiling are before the timing, and reported. On a CPU, figures are the process's own CPU
time on one thread, which another process on the machine disturbs less than a clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import common
import torch
import transformers
from common import ms

from lrpx.passes.attribution import run
from lrpx.passes.dispatch import Execution, PassRunner
from lrpx.tasks.text_classification import LabelScores
from lrpx.text.batching import Batch

IMAGE_TOKEN = 3
BASE: dict[str, Any] = {"image_size": 224, "patch_size": 16}  # the defaults of ViTConfig
TOWER: dict[str, Any] = {
    **BASE, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 8,
}  # fmt: skip
TEXT: dict[str, Any] = {
    "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 8000,
}  # fmt: skip
TINY: dict[str, Any] = {**common.SMALL, "image_size": 32, "patch_size": 8}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    parser = common.parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    args = parser.parse_args(argv)
    if args.smoke:
        args.rounds = 2
    if args.device == "cpu":
        torch.set_num_threads(1)
    torch.set_float32_matmul_precision("highest")
    results = {}
    for name, make in {"ViT": classifier, "LLaVA": text_and_image}.items():
        model, batch = make(args.device, smoke=args.smoke)
        results[name] = compared(model, batch, args.rounds, args.device)
        results[name]["parameters"] = sum(weight.numel() for weight in model.parameters())
    found = common.report("images", args, common.environment(args.device), results)
    rows = [["", "parameters", "eager", "compiled", "compiled / eager", "ready after", "largest difference"]]
    for name, of in results.items():
        times = [ms(of[how]["median_s"]) for how in ("eager", "compiled")]
        ready = f"{of['ready_s']:.0f} s"
        rows.append(
            [name, f"{of['parameters'] / 1e6:.0f} M", *times, f"{of['ratio']:.2f}", ready, f"{of['difference']:.0e}"]
        )
    print(f"AttnLRP, float32, one image; {common.heading(found['environment'])}")
    print(common.table(rows))
    return found


def classifier(device: str, *, smoke: bool) -> tuple[Any, Batch]:
    config = transformers.ViTConfig(**(TINY if smoke else BASE), num_labels=10)
    model = common.made(lambda: transformers.ViTForImageClassification(config), device, torch.float32)
    first, target = torch.zeros(1, dtype=torch.int64, device=device), torch.ones(1, dtype=torch.int64, device=device)
    inputs = {"pixel_values": pixels(config.image_size, device)}
    return model, Batch(inputs, [slice(None)], first, target, target + 1, True, readout=LabelScores(), of_images=True)


def text_and_image(device: str, *, smoke: bool) -> tuple[Any, Batch]:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**({**common.SMALL, "vocab_size": 100} if smoke else TEXT)),
        vision_config=transformers.CLIPVisionConfig(**(TINY if smoke else TOWER)),
        image_token_id=IMAGE_TOKEN,
    )
    model = common.made(lambda: transformers.LlavaForConditionalGeneration(config), device, torch.float32)
    vision = config.vision_config
    ids = [1, *[IMAGE_TOKEN] * (vision.image_size // vision.patch_size) ** 2, *range(10, 42)]
    row = torch.tensor([ids], device=device)
    inputs = {"input_ids": row, "attention_mask": torch.ones_like(row)}
    inputs["pixel_values"] = pixels(vision.image_size, device)
    last = torch.tensor([len(ids) - 1], device=device)
    target = torch.full_like(last, 11)
    return model, Batch(inputs, [slice(0, len(ids))], last, target, target + 2, True, with_images=True)


def pixels(size: int, device: str) -> torch.Tensor:
    return torch.randn(1, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)


def compared(model: Any, batch: Batch, rounds: int, device: str) -> dict[str, Any]:
    runners = {"eager": PassRunner(model), "compiled": PassRunner(model, Execution(compile=True))}
    contenders: dict[str, Callable[[Any], Any]] = {
        name: lambda batch, runner=runner: run(model, batch, "attnlrp", runner=runner).products  # type: ignore[misc]
        for name, runner in runners.items()
    }
    start = time.perf_counter()
    maps = {name: contender(batch) for name, contender in contenders.items()}
    ready = time.perf_counter() - start
    assert len(runners["compiled"].compiled) == 1
    on_cpu = device == "cpu"
    seconds = (
        cpu_seconds(contenders, batch, rounds) if on_cpu else common.in_turns(contenders, [batch] * rounds, device)
    )
    return {
        **{name: common.summary(each) for name, each in seconds.items()},
        "ratio": common.ratio(seconds["compiled"], seconds["eager"]),
        "ready_s": ready,
        "difference": float(abs(maps["compiled"] - maps["eager"]).max() / abs(maps["eager"]).max()),
    }


def cpu_seconds(contenders: dict[str, Callable[[Any], Any]], batch: Batch, rounds: int) -> dict[str, list[float]]:
    """The process's own time of every contender, taking turns."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for n in range(rounds + 1):
        for name, contender in contenders.items():
            start = time.process_time()
            contender(batch)
            if n:  # the first round warms up
                seconds[name].append(time.process_time() - start)
    return seconds


if __name__ == "__main__":
    main()

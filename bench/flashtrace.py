"""FlashTrace beside lrpx: retrieval as in RULER, traced from the answer to the sentence that holds it; how well, and how fast.

    python bench/flashtrace.py --flashtrace PATH                 # a checkout of github.com/wbopan/flashtrace
    python bench/flashtrace.py --flashtrace PATH --examples 20 --sentences 40 160 --device cuda
    python bench/flashtrace.py --flashtrace PATH --shape llama-3.2-1b --device cuda --dtype bfloat16      # how fast alone

A prompt is a haystack (RULER's "noise": five short sentences, over and over) with needles, "One of the special magic numbers for
tiger is: 48213.", and a question about one of them. The continuation is given: "The special magic number for tiger is 48213."
The number is the answer, and the words before it are what FlashTrace calls reasoning. Both explain the same tokens of the same
weights, FlashTrace in a process of its own (Pan et al. 2026, arXiv 2602.01914), on a CPU with one thread each.

- recovery: which share of the needle's tokens is among the tenth of the prompt's tokens with the most relevance (theirs, 10 %);
- RISE: the prompt's tokens are replaced by padding, the most relevant first, in ten steps; the area under the answer's
  log-probability, which goes from 1 (whole prompt) to 0 (none), and is kept from rising (theirs, of 20 steps). Lower is better;
- seconds of one example: on a CPU those of the process, on a GPU those that pass.

Recovery and RISE are means over the prompts with their standard deviations, seconds are medians. ``--shape`` takes random weights
and a token for each letter: then only the time is measured.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

STEPS = 10
THEIRS = {"FlashTrace, span": {"method": "ifr-span"}, "FlashTrace, 1 hop": {"method": "flashtrace", "hops": 1}}
OURS: dict[str, dict[str, Any]] = {
    "lrpx attnlrp": {"method": "attnlrp"},
    "lrpx lrp": {"method": "lrp"},
    "lrpx attnlrp, contrast mean": {"method": "attnlrp", "contrast": "mean"},
    "lrpx attnlrp, 1 hop": {"method": "attnlrp", "hops": 1},
    "lrpx lrp, 1 hop": {"method": "lrp", "hops": 1},
}
UNUSED = ("seaborn", "spacy", "spacy.language", "spacy.tokens", "wordfreq")  # FlashTrace imports them, for other things

Example = dict[str, Any]  # see ``example``
Run = tuple[list[float], float]  # scores of the prompt's tokens, and seconds


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    import common

    import lrpx

    parser = common.parser_of(__doc__)
    parser.add_argument("--flashtrace", metavar="PATH", help="a checkout of FlashTrace; without it, it is left out")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--model", help="a name or folder for lrpx.load. Default: smollm2-135m")
    which.add_argument(
        "--shape", choices=[name for name, shape in common.SHAPES.items() if shape.family == "llama"], help="instead"
    )
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--examples", type=int, default=12, help="prompts of each length")
    parser.add_argument("--sentences", type=int, nargs="+", default=[10, 40], help="of the haystack: a length each")
    parser.add_argument("--needles", type=int, default=3)
    args = parser.parse_args(argv)
    if args.smoke:
        args.examples, args.sentences, args.needles = 2, [4, 6], 2
        args.shape = None if args.model else "tiny"
    if not args.shape:
        args.model = args.model or "smollm2-135m"
    if args.device == "cpu":
        torch.set_num_threads(1)
    if args.shape:
        model, tokenizer = common.build(args.shape, args.device, getattr(torch, args.dtype)), letters()
    else:
        model, tokenizer = lrpx.load(args.model, dtype=args.dtype, device=args.device)
    examples = [example(tokenizer, args.needles, n, seed) for n in args.sentences for seed in range(args.examples)]
    facts = common.environment(args.device)
    runs, failure = theirs(args, model, tokenizer, examples)
    explainer = lrpx.Explainer(model, tokenizer)
    for each in with_first_twice(examples):
        for name, options in OURS.items():
            run = ours(explainer, each, options, args.device)
            if not each.get("warm-up"):
                runs.setdefault(name, []).append(run)
    if args.device == "cpu":
        torch.set_num_threads(os.cpu_count() or 1)  # nothing is timed from here on
    lengths = {}
    for n, begin in zip(args.sentences, range(0, len(examples), args.examples), strict=True):
        some = slice(begin, begin + args.examples)
        of_length = {name: each[some] for name, each in runs.items() if len(each[some]) == args.examples}
        lengths[str(n)] = summary(model, tokenizer, examples[some], of_length, timed_only=bool(args.shape))
    report = common.report("flashtrace", args, facts, {"lengths": lengths, "flashtrace": failure})
    show(report)
    return report


def with_first_twice(examples: Sequence[Example]) -> Iterator[Example]:
    """The examples, those of each length after one to warm up."""
    before = None
    for each in examples:
        if each["sentences"] != before:
            yield each | {"warm-up": True}
        before = each["sentences"]
        yield each


def letters() -> Any:
    """A tokenizer with a token for each letter."""
    import string

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = [
        *string.ascii_letters,
        *string.digits,
        *string.punctuation,
        "\u0120",
        "\u010a",
    ]  # GPT-2's space and new line
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate([*alphabet, "<end>"])}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>", pad_token="<end>")
    found.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return found


def example(tokenizer: Any, count: int, length: int, seed: int) -> Example:
    """A prompt of ``length`` sentences and ``count`` needles, as text and ids; the tokens of needle, haystack and answer."""
    from lrpx.benchmark.haystack import FILLER, KEYS

    chance = random.Random(seed)
    keys = chance.sample(KEYS, count)
    numbers = {key: str(chance.randint(10_000, 99_999)) for key in keys}
    needles = {key: f"One of the special magic numbers for {key} is: {number}." for key, number in numbers.items()}
    sentences = [FILLER[i % len(FILLER)] for i in range(length)]
    for key in keys:
        sentences.insert(chance.randint(0, len(sentences)), needles[key])
    asked = chance.choice(keys)
    text = f"A special magic number is hidden in this text. Memorize it.\n{' '.join(sentences)}\n"
    text += f"What is the special magic number for {asked} mentioned in the text?"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True
    )
    encoded = tokenizer(prompt, add_special_tokens=False, return_offsets_mapping=True)
    begin, end = prompt.index(needles[asked]), prompt.index(needles[asked]) + len(needles[asked])
    user = prompt.index(text), prompt.index(text) + len(text)
    offsets = encoded["offset_mapping"]
    before, answer = f"The special magic number for {asked} is", f" {numbers[asked]}"
    reasoning, after = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, answer))
    whole = tokenizer(before + answer, add_special_tokens=False)["input_ids"]
    assert whole == reasoning + after, "the answer changes the tokens before it"
    return {
        "sentences": length,
        "prompt": prompt,
        "ids": encoded["input_ids"],
        "target": before + answer,
        "target_ids": whole,
        "span": (len(reasoning), len(whole)),
        "gold": [i for i, (a, b) in enumerate(offsets) if a < end and b > begin],
        "user": [i for i, (a, b) in enumerate(offsets) if a < user[1] and b > user[0]],
    }


def ours(explainer: Any, each: Example, options: dict[str, Any], device: str) -> Run:
    ids, answer = each["ids"], each["target_ids"]
    found, seconds = timed(
        lambda: explainer.generate(ids, continuation=answer, spans=[each["span"]], **options), device
    )
    return found.relevance[0, : len(ids)].tolist(), seconds


def timed(run: Callable[[], Any], device: str) -> tuple[Any, float]:
    """What ``run`` returns, and the seconds that it took: of the process, or until the GPU is done."""
    import common

    common.synchronise(device)
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    found = run()
    common.synchronise(device)
    return found, clock() - start


def theirs(
    args: Any, model: Any, tokenizer: Any, examples: list[Example]
) -> tuple[dict[str, list[Run]], dict[str, str]]:
    """What FlashTrace finds, in a process of its own with the same weights; and why not, if not all."""
    if args.flashtrace is None:
        return {}, {"skipped": "give --flashtrace PATH, a checkout with what it needs installed"}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tokenizer.save_pretrained(folder / "model")
        if not args.shape:
            model.save_pretrained(folder / "model")
        job = {"examples": examples, "device": args.device, "dtype": args.dtype, "shape": args.shape}
        (folder / "job.json").write_text(json.dumps(job))
        paths = os.pathsep.join([str(Path(args.flashtrace).resolve()), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-W", "ignore", __file__, "--worker", str(folder)]
        run = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        result = folder / "result.json"
        found = json.loads(result.read_text()) if result.exists() else {}
        last = run.stderr.strip().splitlines()[-1:] or [f"exit status {run.returncode}"]
        return found, {"failed": last[0]} if run.returncode else {}


def work(folder: Path) -> None:
    """The other process: FlashTrace's scores of the prompt's tokens, and the seconds of each example."""
    import common
    from transformers import PreTrainedTokenizerFast

    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here]  # this file has the name of their package
    for name in UNUSED:
        if importlib.util.find_spec(name.partition(".")[0]) is None:
            # Others ask whether the package is there.
            sys.modules[name] = MagicMock(__spec__=importlib.machinery.ModuleSpec(name, None))

    from flashtrace import FlashTrace, load_model_and_tokenizer

    job = json.loads((folder / "job.json").read_text())
    device = job["device"]
    if device == "cpu":
        torch.set_num_threads(1)
    if job["shape"]:
        model = common.build(job["shape"], device, getattr(torch, job["dtype"]))
        model.set_attn_implementation("eager")  # theirs: it reads the weights of attention
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "model")
    else:
        model, tokenizer = load_model_and_tokenizer(str(folder / "model"), device_map=None, dtype=job["dtype"])
        model.to(device)
    tracer = FlashTrace(model, tokenizer)
    found: dict[str, list[Run]] = {name: [] for name in THEIRS}
    for each in with_first_twice(job["examples"]):
        start, stop = each["span"]
        asked = {"prompt": each["prompt"], "target": each["target"], "output_span": (start, stop - 1)}
        for name, options in THEIRS.items():
            more = {"reasoning_span": (0, start - 1)} if "hops" in options else {}
            trace, seconds = timed(lambda all=asked | options | more: tracer.trace(**all), device)
            assert len(trace.scores) == len(each["ids"]), "the prompt has other tokens there"
            if not each.get("warm-up"):
                found[name].append((trace.scores, seconds))
        (folder / "result.json").write_text(json.dumps(found))  # what there is, if a longer one fails


def summary(
    model: Any, tokenizer: Any, examples: list[Example], runs: dict[str, list[Run]], *, timed_only: bool
) -> dict[str, Any]:
    """What was found for prompts of one length."""
    import common

    tokens = [len(each["ids"]) for each in examples]
    rows: dict[str, dict[str, Any]] = {
        name: {"seconds": common.summary([seconds for _, seconds in each])} for name, each in runs.items()
    }
    found = {"tokens": [min(tokens), max(tokens)], "methods": rows}
    if timed_only:
        return found
    chance = random.Random(0)
    runs = {**runs, "chance": [([chance.random() for _ in each["ids"]], 0.0) for each in examples]}
    for name, of_method in runs.items():
        recovered, areas = [], []
        for each, (scores, _) in zip(examples, of_method, strict=True):
            user = np.array(each["user"])
            order = user[np.argsort(-np.array(scores)[user], kind="stable")]
            top = set(order[: -(-len(user) // 10)].tolist())
            recovered.append(len(top & set(each["gold"])) / len(each["gold"]))
            areas.append(rise(model, tokenizer, each, order))
        rows.setdefault(name, {})
        rows[name] |= {"recovery": spread(recovered), "rise": spread(areas)}
    return {**found, "answered": correct(model, examples)}


def spread(values: list[float]) -> dict[str, Any]:
    """Mean and standard deviation over the prompts, and each prompt's own."""
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    return {"mean": float(np.mean(values)), "deviation": deviation, "each": values}


@torch.no_grad()
def rise(model: Any, tokenizer: Any, each: Example, order: np.ndarray) -> float:
    """The area under the answer's log-probability while tokens are replaced in this order."""
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    start, stop = (len(each["ids"]) + i for i in each["span"])
    rows = [each["ids"] + each["target_ids"]]
    for group in np.array_split(order, STEPS):
        row = list(rows[-1])
        for i in group:
            row[i] = filler
        rows.append(row)
    ids = torch.tensor(rows, device=model.device)
    logits = model(ids, logits_to_keep=ids.shape[1] - start + 1, use_cache=False).logits
    of_answer = logits[:, : stop - start].float().log_softmax(-1).gather(2, ids[:, start:stop, None])
    numbers = of_answer.sum((1, 2)).cpu().numpy()
    curve = np.clip((numbers - numbers[-1]) / abs(numbers[0] - numbers[-1]), 0, 1)
    curve = np.minimum.accumulate(curve)
    return float((curve.sum() - curve[0] / 2 - curve[-1] / 2) / STEPS)


@torch.no_grad()
def correct(model: Any, examples: list[Example]) -> int:
    """In how many examples every token of the number is the model's top prediction."""
    count = 0
    for each in examples:
        start, stop = (len(each["ids"]) + i for i in each["span"])
        ids = torch.tensor([each["ids"] + each["target_ids"]], device=model.device)
        logits = model(ids, logits_to_keep=ids.shape[1] - start + 1, use_cache=False).logits
        count += bool((logits[0, : stop - start].argmax(-1) == ids[0, start:stop]).all())
    return count


def show(found: dict[str, Any]) -> None:
    import common

    args, results = found["arguments"], found["results"]
    print(
        f"{args['shape'] or args['model']}, {args['dtype']}; prompts with {args['needles']} needles, {args['examples']} of "
        f"each length; {common.heading(found['environment'])}"
    )
    table = [["", "tokens", "recovery", "RISE", "seconds"]]
    for of_length in results["lengths"].values():
        low, high = of_length["tokens"]
        for name, row in of_length["methods"].items():
            scores = [
                f"{row[k]['mean']:.2f} ± {row[k]['deviation']:.2f}" if k in row else "" for k in ("recovery", "rise")
            ]
            seconds = f"{row['seconds']['median_s']:.3f}" if "seconds" in row else ""
            table.append([name, f"{low} to {high}", *scores, seconds])
    print(common.table(table))
    for of_length in results["lengths"].values():
        if "answered" in of_length:
            low, high = of_length["tokens"]
            print(
                f"{low} to {high} tokens: the model gives the whole number greedily in {of_length['answered']} of "
                f"{args['examples']} prompts"
            )
    for how, why in results["flashtrace"].items():
        print(f"FlashTrace {how}: {why}" if how == "failed" else f"FlashTrace is left out: {why}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        main()

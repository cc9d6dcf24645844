"""FlashTrace beside lrpx: retrieval as in RULER, traced from the answer to the sentence that holds it; how well, and how fast.

    python bench/flashtrace.py --flashtrace PATH                 # a checkout of github.com/wbopan/flashtrace
    python bench/flashtrace.py --flashtrace PATH --examples 20 --sentences 80

A prompt is a haystack (RULER's "noise": five short sentences, over and over) with needles, "One of the special magic numbers for
tiger is: 48213.", and a question about one of them. The continuation is given: "The special magic number for tiger is 48213."
The number is the answer, and the words before it are what FlashTrace calls reasoning. Both explain the same tokens of the same
weights on one CPU thread, FlashTrace in a process of its own (Pan et al. 2026, arXiv 2602.01914).

- recovery: which share of the needle's tokens is among the tenth of the prompt's tokens with the most relevance (theirs, 10 %);
- RISE: the prompt's tokens are replaced by padding, the most relevant first, in ten steps; the area under the answer's
  log-probability, which goes from 1 (whole prompt) to 0 (none), and is kept from rising (theirs, of 20 steps). Lower is better;
- seconds of the process for one example.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

STEPS = 10
THEIRS = {"FlashTrace, span": {"method": "ifr-span"}, "FlashTrace, 1 hop": {"method": "flashtrace", "hops": 1}}
OURS: dict[str, dict[str, Any]] = {
    "lrpx attnlrp": {"method": "attnlrp"},
    "lrpx lrp": {"method": "lrp"},
    "lrpx attnlrp, contrast mean": {"method": "attnlrp", "contrast": "mean"},
    "lrpx attnlrp, 1 hop": {"method": "attnlrp", "hops": 1},
}


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    import common

    import lrpx

    parser = common.parser_of(__doc__)
    parser.add_argument("--flashtrace", metavar="PATH", help="a checkout of FlashTrace, with what it needs installed")
    parser.add_argument("--model", default="smollm2-135m", help="a name or folder for lrpx.load")
    parser.add_argument("--examples", type=int, default=10)
    parser.add_argument("--sentences", type=int, default=40, help="of the haystack")
    parser.add_argument("--needles", type=int, default=3)
    args = parser.parse_args(argv)
    if args.smoke:
        args.examples, args.sentences, args.needles = 1, 6, 2
    torch.set_num_threads(1)
    model, tokenizer = lrpx.load(args.model, dtype="float32", device="cpu")
    examples = [example(tokenizer, args, seed) for seed in range(args.examples)]
    found: dict[str, list[tuple[list[float], float]]] = theirs(args.flashtrace, model, tokenizer, examples)
    explainer = lrpx.Explainer(model, tokenizer)
    ours(explainer, examples[0], {})  # warm
    for each in examples:
        for name, options in OURS.items():
            found.setdefault(name, []).append(ours(explainer, each, options))
    facts = common.environment("cpu")
    chance = random.Random(0)
    found["chance"] = [([chance.random() for _ in each["ids"]], 0.0) for each in examples]
    torch.set_num_threads(os.cpu_count() or 1)  # nothing is timed from here on
    rows = {name: summary(model, tokenizer, examples, runs) for name, runs in found.items()}
    best = correct(model, examples)
    report = common.report("flashtrace", args, facts, {"methods": rows, "answered": best})
    tokens = [len(each["ids"]) for each in examples]
    print(
        f"{args.model}, float32: {args.examples} prompts of {min(tokens)} to {max(tokens)} tokens, {args.needles} needles; the "
        f"model gives the whole number greedily in {best} of them; {common.heading(facts)}"
    )
    table = [["", "recovery", "RISE", "seconds"]]
    table += [[name, *(f"{row[key]:.2f}" for key in ("recovery", "rise", "seconds"))] for name, row in rows.items()]
    print(common.table(table))
    return report


def example(tokenizer: Any, args: Any, seed: int) -> dict[str, Any]:
    """A prompt as text and ids, with the tokens of the needle, of the haystack and of the answer."""
    from lrpx.benchmark.haystack import FILLER, KEYS

    chance = random.Random(seed)
    keys = chance.sample(KEYS, args.needles)
    numbers = {key: str(chance.randint(10_000, 99_999)) for key in keys}
    needles = {key: f"One of the special magic numbers for {key} is: {number}." for key, number in numbers.items()}
    sentences = [FILLER[i % len(FILLER)] for i in range(args.sentences)]
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
        "prompt": prompt,
        "ids": encoded["input_ids"],
        "target": before + answer,
        "target_ids": whole,
        "span": (len(reasoning), len(whole)),
        "gold": [i for i, (a, b) in enumerate(offsets) if a < end and b > begin],
        "user": [i for i, (a, b) in enumerate(offsets) if a < user[1] and b > user[0]],
    }


def ours(explainer: Any, each: dict[str, Any], options: dict[str, Any]) -> tuple[list[float], float]:
    start = time.process_time()
    found = explainer.generate(each["ids"], continuation=each["target_ids"], spans=[each["span"]], **options)
    seconds = time.process_time() - start
    return found.relevance[0, : len(each["ids"])].tolist(), seconds


def theirs(path: str | None, model: Any, tokenizer: Any, examples: list[dict[str, Any]]) -> dict[str, Any]:
    """What FlashTrace finds, in a process of its own that reads the same weights."""
    if path is None:
        print("FlashTrace is left out: give --flashtrace PATH, a checkout with what it needs installed.")
        return {}
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model.save_pretrained(folder / "model")
        tokenizer.save_pretrained(folder / "model")
        (folder / "job.json").write_text(json.dumps(examples))
        paths = os.pathsep.join([str(Path(path).resolve()), os.environ.get("PYTHONPATH", "")])
        command = [sys.executable, "-W", "ignore", __file__, "--worker", str(folder)]
        run = subprocess.run(command, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True)
        result = folder / "result.json"
        if not result.exists():
            raise SystemExit(f"FlashTrace did not run: {run.stderr.strip()[-2000:]}")
        return dict(json.loads(result.read_text()))


def work(folder: Path) -> None:
    """The other process: FlashTrace's scores of the prompt's tokens, and the seconds of each example."""
    sys.path[:] = [
        path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent
    ]  # this file's name

    from flashtrace import FlashTrace, load_model_and_tokenizer

    torch.set_num_threads(1)
    model, tokenizer = load_model_and_tokenizer(str(folder / "model"), device_map=None, dtype="float32")
    tracer = FlashTrace(model, tokenizer)
    found: dict[str, Any] = {name: [] for name in THEIRS}
    examples = json.loads((folder / "job.json").read_text())
    for turn, each in enumerate([examples[0], *examples]):  # the first is to warm up
        start, stop = each["span"]
        for name, options in THEIRS.items():
            more = {"reasoning_span": (0, start - 1)} if "hops" in options else {}
            begin = time.process_time()
            trace = tracer.trace(
                prompt=each["prompt"], target=each["target"], output_span=(start, stop - 1), **options, **more
            )
            seconds = time.process_time() - begin
            assert len(trace.scores) == len(each["ids"]), "the prompt has other tokens there"
            if turn:
                found[name].append((trace.scores, seconds))
    (folder / "result.json").write_text(json.dumps(found))


def summary(model: Any, tokenizer: Any, examples: list[dict[str, Any]], runs: list[Any]) -> dict[str, float]:
    recovered, areas = [], []
    for each, (scores, _) in zip(examples, runs, strict=True):
        user = np.array(each["user"])
        order = user[np.argsort(-np.array(scores)[user], kind="stable")]
        top = set(order[: -(-len(user) // 10)].tolist())
        recovered.append(len(top & set(each["gold"])) / len(each["gold"]))
        areas.append(rise(model, tokenizer, each, order))
    seconds = float(np.median([seconds for _, seconds in runs]))
    return {"recovery": float(np.mean(recovered)), "rise": float(np.mean(areas)), "seconds": seconds}


@torch.no_grad()
def rise(model: Any, tokenizer: Any, each: dict[str, Any], order: np.ndarray) -> float:
    """The area under the answer's log-probability while tokens are replaced in this order."""
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    start, stop = (len(each["ids"]) + i for i in each["span"])
    rows = [each["ids"] + each["target_ids"]]
    for group in np.array_split(order, STEPS):
        row = list(rows[-1])
        for i in group:
            row[i] = filler
        rows.append(row)
    ids = torch.tensor(rows)
    numbers = []
    for row in ids:
        logits = model(row[None], logits_to_keep=len(row) - start + 1).logits[0, : stop - start].log_softmax(-1)
        numbers.append(float(logits.gather(1, row[start:stop, None]).sum()))
    curve = np.clip((np.array(numbers) - numbers[-1]) / abs(numbers[0] - numbers[-1]), 0, 1)
    curve = np.minimum.accumulate(curve)
    return float((curve.sum() - curve[0] / 2 - curve[-1] / 2) / STEPS)


@torch.no_grad()
def correct(model: Any, examples: list[dict[str, Any]]) -> int:
    """In how many examples every token of the number is the model's top prediction."""
    count = 0
    for each in examples:
        start, stop = (len(each["ids"]) + i for i in each["span"])
        ids = torch.tensor([each["ids"] + each["target_ids"]])
        count += bool((model(ids).logits[0, start - 1 : stop - 1].argmax(-1) == ids[0, start:stop]).all())
    return count


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Path(sys.argv[2]))
    else:
        main()

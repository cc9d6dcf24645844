"""A small explanation with layers, heads and neurons, for tests of what is drawn of them."""

import numpy as np

from lrpx import Explanation
from lrpx.results.tokens import Token, Unit

WORDS = ["The", " keys", " to", " ca", "binet"]
LAYERS, HEADS = 3, 4
NASTY = ["</script><script>alert(1)</script>", "<b>&amp;", '" onclick="x', "\n", " '"]


def made(words=WORDS, seed=0, **fields):
    """Five tokens of four cells, with layers, heads and neurons."""
    rng = np.random.default_rng(seed)
    count = len(words)
    by_head = rng.normal(size=(LAYERS, HEADS, count))
    given = {
        "tokens": list(words), "token_ids": list(range(count)), "method": "attnlrp", "position": count - 1,
        "units": [*(Unit(i, i + 1, w) for i, w in enumerate(words[:-2])), Unit(count - 2, count, "".join(words[-2:]))],
        "relevance": rng.normal(size=count), "value": 1.5, "residual": 0.5, "target": Token(7, "x"), "contrast": None,
        "by_head": by_head, "by_layer": rng.normal(size=(LAYERS, count)), "by_attention": by_head.sum(1),
        "by_mlp": rng.normal(size=(LAYERS, count)), "layers": {"block.0.mlp": rng.normal(size=(count, 6))},
    }  # fmt: skip
    return Explanation(**given | fields)


def cells(numbers):
    """Numbers of tokens as those of the four cells."""
    return np.concatenate([numbers[..., :3], numbers[..., 3:].sum(-1, keepdims=True)], axis=-1)

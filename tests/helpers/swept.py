"""Which language models are explained, and which are refused by name: what sweeps over families are about."""

import tiny

from lrpx.models.refused import REFUSED

# Listed as masked, and explained as what they are: see tests/tasks/test_sweep_text2text.py.
ENCODER_DECODER = ("masked:bart", "masked:mbart", "masked:mvp")


def type_of(family):
    return family.split(":")[1]


MUSIC = ("causal:musicgen", "causal:musicgen_melody")
REFUSES = [f for f in tiny.FAMILIES if type_of(f) in REFUSED or f in MUSIC]
EXPLAINED = [f for f in tiny.FAMILIES if f not in REFUSES and f not in ENCODER_DECODER]

"""Every kind of bad input gets an error that says what to type, and leaves the model exactly as it was."""

import re

import pandas as pd
import pytest
import tiny
import tiny_tokenizers
import torch
import transformers
from support import fingerprint, slow_but
from torch import nn

import lrpx
from lrpx.cli import main as cli
from lrpx.errors import InputError, NonFiniteError, UnsupportedModelError
from lrpx.heatmap.text import as_string
from lrpx.methods import METHODS

TEXT = tiny_tokenizers.TEXT
MASKED = "The keys [MASK] here"


def marked(model):
    """``model`` with something of the user's own in every place that explaining could disturb."""
    parameters = list(model.parameters())
    parameters[0].requires_grad_(False)
    parameters[1].grad = torch.ones_like(parameters[1])
    model.note = "mine"
    module = next(m for m in model.modules() if isinstance(m, nn.LayerNorm))
    module.register_forward_hook(lambda module, args, output: None)
    module.register_forward_pre_hook(lambda module, args: None)
    module.forward = module.forward  # an instance attribute that shadows the class
    return model


@pytest.fixture(scope="module")
def gpt2():
    tokenizer = tiny_tokenizers.byte_level()
    return marked(tiny_tokenizers.gpt2(tokenizer)), tokenizer


@pytest.fixture(scope="module")
def bert():
    tokenizer = tiny_tokenizers.word_piece()
    return marked(tiny_tokenizers.bert(tokenizer)), tokenizer


def refused(pair, error, message, text=TEXT, **options):
    """``lrpx.explain`` raises ``error`` with ``message``, and changes nothing."""
    model, tokenizer = pair
    before = fingerprint(model)
    with pytest.raises(error, match=message):
        lrpx.explain(model, tokenizer, text, **options)
    assert fingerprint(model) == before


def test_arguments_without_names(gpt2):
    explainer = lrpx.Explainer(*gpt2)
    with pytest.raises(InputError, match=r"Type: explainer\(text, target=' are', contrast=' is'\)$"):
        explainer(TEXT, " are", " is")


# The text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (pd.DataFrame({"t": ["a"]}), r"the text is a table \(DataFrame\). Give one column, such as table\['text'\]"),
        ((text for text in ["a"]), r"of the type generator. Give a list: list\(texts\)"),
        ({"a", "b"}, r"of the type set. Give a list: list\(texts\)"),
        ({1: "a"}.values(), r"of the type dict_values. Give a list: list\(texts\)"),
    ],
)
def test_texts_in_something_that_is_no_list(gpt2, text, message):
    refused(gpt2, InputError, message, text=text)


@pytest.mark.parametrize("text", ["", " \n\t", ["The keys", ""], [], [[]]])
def test_empty_text(gpt2, text):
    refused(gpt2, InputError, r"the text .*(is empty|is \[\]). Give (at least one word|a string)", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ([3, 304], "token id 304 is outside the model's vocabulary of 304. Is this the model's own tokenizer?"),
        ([[3], [4, -1]], r"text\[1\]: token id -1 is negative. Ids count from 0"),
    ],
)
def test_ids_outside_the_vocabulary(gpt2, text, message):
    refused(gpt2, InputError, message, text)


@pytest.mark.parametrize("method", METHODS)
def test_a_text_longer_than_the_model_can_read(gpt2, method):
    message = "the text has 67 tokens, 3 more than the 64 that GPT2LMHeadModel can read. Shorten it."
    refused(gpt2, InputError, message, "keys" * 67, method=method)
    refused(gpt2, InputError, r"text\[1\]: " + message, ["keys", "keys" * 67], method=method)


def test_the_longest_text_that_fits(gpt2):
    assert len(lrpx.explain(*gpt2, "keys" * 64).tokens) == 64


def test_roberta_reads_two_tokens_less_than_it_has_positions():
    tokenizer = tiny_tokenizers.roberta()
    pair = tiny_tokenizers.roberta_model(tokenizer), tokenizer
    text = "keys" * 61 + "<mask>"
    assert len(lrpx.explain(*pair, text).tokens) == 64
    refused(
        pair, InputError, "the text has 65 tokens, 1 more than the 64 that RobertaForMaskedLM can read", "keys" + text
    )


# Target and contrast


def test_a_target_of_several_tokens(gpt2):
    many = {"target": " keyskeys", "method": "alti-logit"}
    refused(
        gpt2,
        InputError,
        "alti-logit explains the logit of one token, and neither several tokens together nor log-probabilities; lrp, ",
        **many,
    )
    refused(
        gpt2, InputError, "contrast='  is' is 2 tokens here: ' ', ' is'.*Give contrast=' is', which", contrast="  is"
    )


def test_a_target_of_no_token(gpt2, bert):
    refused(gpt2, InputError, "target='' is no token. Give a word, with its leading space", target="")
    refused(bert, InputError, "target=' ' is no token. Give a word", MASKED, target=" ")
    refused(
        bert,
        InputError,
        r"target='🤗' is not in the vocabulary: the tokenizer reads it as '\[UNK\]'",
        MASKED,
        target="🤗",
    )


@pytest.mark.parametrize("same", [{"target": " is", "contrast": " is"}, {"target": 5, "contrast": 5}])
def test_target_and_contrast_are_the_same(gpt2, same):
    refused(gpt2, InputError, r"target .* and contrast .* are the same token \(\d+\): their difference is 0", **same)


def test_the_contrast_is_the_top_prediction(gpt2):
    model, tokenizer = gpt2
    first, second = (prediction.token for prediction in lrpx.explain(model, tokenizer, TEXT).top[:2])
    top, example = first.id, re.escape(f"target={second.id} ({as_string(second.shown)})")
    message = rf"the contrast itself, {re.escape(as_string(first.shown))}: .*Say which target, such as {example}"
    refused(gpt2, InputError, message, contrast=top)
    refused(
        gpt2, InputError, r"text\[1\]: the model's top prediction is the contrast", ["The", TEXT], contrast=[None, top]
    )


@pytest.mark.parametrize("given", [304, -1])
def test_a_target_outside_the_vocabulary(gpt2, given):
    refused(gpt2, InputError, f"target={given} is outside the vocabulary: ids go from 0 to 303", target=given)
    refused(gpt2, InputError, f"contrast={given} is outside the vocabulary: ids go from 0 to 303", contrast=given)


@pytest.mark.parametrize("name", ["target", "contrast", "position"])
def test_another_number_of_values_than_texts(gpt2, name):
    refused(
        gpt2, InputError, f"^1 value of {name} for 2 texts. Give one for all, or one each", ["a", "b"], **{name: [3]}
    )


# The position


@pytest.mark.parametrize("position", [5, -6])
def test_a_position_outside_the_text(gpt2, position):
    refused(gpt2, InputError, f"position {position} is outside the text, which has 5 tokens: 0 to 4", position=position)


def test_no_mask_token_or_two(bert):
    refused(bert, InputError, r"in place of a mask token \('\[MASK\]', id 4\), and the text has none. Put one in, or")
    two = "The [MASK] to [MASK]"
    refused(bert, InputError, r"the text has 2 mask tokens, at positions \[2, 4\]. Say which: position=2", two)
    assert lrpx.explain(*bert, two, position=4).position == 4
    assert lrpx.explain(*bert, TEXT, position=4).position == 4


# Names


def test_an_unknown_method(gpt2):
    refused(gpt2, InputError, "unknown method 'atnlrp'. Did you mean 'attnlrp'. Known: .*gradient", method="atnlrp")
    refused(
        gpt2,
        InputError,
        "unknown method 'Gradient_x_Input'. Did you mean 'gradient-x-input'",
        method="Gradient_x_Input",
    )
    refused(gpt2, InputError, "method=None has the type NoneType. Give the name", method=None)
    refused(gpt2, InputError, "has the type set. Give the name of a method", method={"lrp"})
    refused(gpt2, InputError, r"'lrp, attnlrp'. Several are a list: method=\['lrp', 'attnlrp'\]", method="lrp, attnlrp")


def test_several_methods_where_one_is_asked_for(gpt2):
    one = r"method=\['lrp', 'attnlrp'\]: one method is asked for here"
    with pytest.raises(InputError, match=one):
        lrpx.Explainer(*gpt2).generate(TEXT, max_new_tokens=2, method=["lrp", "attnlrp"])
    with pytest.raises(InputError, match=one):
        lrpx.Explainer(*gpt2, method=["lrp", "attnlrp"])


@pytest.mark.parametrize("option", ["do_sample", "temperature", "num_beams"])
def test_options_of_generation(gpt2, option):
    with pytest.raises(
        InputError, match=rf"'{option}'. How .* explainer.generate\(prompt, generation_config={{'{option}'"
    ):
        lrpx.Explainer(*gpt2).generate(TEXT, max_new_tokens=2, **{option: 1})
    refused(gpt2, InputError, r"It is one of explainer.generate\(prompt, max_new_tokens=", max_new_tokens=3)


def test_a_generation_config_that_is_none(gpt2):
    explainer = lrpx.Explainer(*gpt2)
    with pytest.raises(InputError, match=r"generation_config: unknown option 'temprature'. Did you mean 'temperature'"):
        explainer.generate(TEXT, max_new_tokens=2, generation_config={"temprature": 0.5})
    with pytest.raises(InputError, match="max_new_tokens= is given twice"):
        explainer.generate(TEXT, max_new_tokens=2, generation_config={"max_new_tokens": 3})
    assert len(explainer.generate(TEXT, max_new_tokens=2, generation_config={"max_new_tokens": 2})) == 2


def test_a_size_of_batches(gpt2):
    refused(gpt2, InputError, r"'batch_size'. Batches .* batch_tokens=4096", batch_size=4)


def test_an_option_the_method_does_not_take(gpt2):
    refused(gpt2, InputError, "unknown option 'nrom'. Did you mean 'norm'", nrom="l2")
    refused(gpt2, InputError, "unknown norm 'l3'. Did you mean 'l2'", method="gradient", norm="l3")
    refused(gpt2, InputError, "unknown rule set 'lpr'. Did you mean 'lrp'", rules="lpr")
    refused(gpt2, InputError, r"rules={'gamma': 0.25}: .* Type: rules='gamma=0.25'", rules={"gamma": 0.25})


@pytest.mark.parametrize("at", [3, [3], [None, "input"]])
def test_places_that_are_no_names(gpt2, at):
    refused(gpt2, InputError, r'at=.*: give "input", "embedding" or a module name, or a list of these', at=at)


def test_a_module_that_is_not_there(gpt2):
    refused(
        gpt2,
        InputError,
        r"at='transformer.h.7' matches no module. Did you mean 'transformer.h.0'",
        at="transformer.h.7",
    )
    with pytest.raises(InputError) as error:
        lrpx.explain(*gpt2, TEXT, at="nothing")
    assert "pixels" not in str(error.value)
    refused(gpt2, InputError, r"at='lm_head': .* Name modules that return one, such as", at="**")


@pytest.mark.parametrize("batch_tokens", [0, -1, 2.5, None])
def test_a_batch_of_no_tokens(gpt2, batch_tokens):
    refused(gpt2, InputError, "batch_tokens=.*: give a number of tokens from 1", batch_tokens=batch_tokens)


def test_a_tokenizer_by_its_name(gpt2):
    with pytest.raises(
        InputError, match=r"tokenizer='gpt2' is a name. Give .* AutoTokenizer.from_pretrained\('gpt2'\)"
    ):
        lrpx.Explainer(gpt2[0], "gpt2")


def test_a_pipeline(gpt2):
    pipe = transformers.pipeline("text-generation", model=gpt2[0], tokenizer=gpt2[1])
    with pytest.raises(InputError, match=r"lrpx.Explainer\(pipe.model, pipe.tokenizer\)"):
        lrpx.Explainer(pipe)


@pytest.mark.parametrize("model", [None, 3, nn.Linear(2, 2)])
def test_something_that_is_no_model(gpt2, model):
    with pytest.raises(InputError, match=rf"the model is of type {type(model).__name__}. Give a model of transformers"):
        lrpx.explain(model, gpt2[1], TEXT)
    with pytest.raises(InputError, match=r"the model is of type \w*Tokeniz\w*\. Give a model of"):
        lrpx.explain(gpt2[1], gpt2[0], TEXT)
    with pytest.raises(
        InputError, match=r"came as one, as lrpx\.load returns them\. Type a star: lrpx\.Explainer\(\*loaded\)"
    ):
        lrpx.Explainer(gpt2)


@pytest.mark.parametrize("rules", [3, ["lrp"]])
def test_rules_that_are_no_rule_set(gpt2, rules):
    refused(gpt2, InputError, "rules=.*: give the name of a rule set, or a dictionary", rules=rules)


def test_a_model_without_weights():
    tokenizer = tiny_tokenizers.byte_level()
    with pytest.raises(InputError, match="the weights of this GPT2LMHeadModel are not loaded"):
        lrpx.explain(tiny_tokenizers.gpt2(tokenizer).to("meta"), tokenizer, TEXT)


def test_no_text(gpt2):
    refused(gpt2, InputError, r"no text given: .* lrpx.explain\(model, tokenizer, text\)", None)


def test_an_unknown_model():
    with pytest.raises(InputError, match=r"/no/such/folder: no such file or folder"):
        lrpx.explain("/no/such/folder", None, TEXT)


# The model


@pytest.mark.parametrize("method", METHODS)
def test_a_model_in_training_mode(method):
    tokenizer = tiny_tokenizers.byte_level()
    model = marked(tiny_tokenizers.gpt2(tokenizer)).train()
    message = "GPT2LMHeadModel is in training mode, where dropout makes every pass different. Call model.eval()"
    refused((model, tokenizer), UnsupportedModelError, message, method=method)


@pytest.mark.parametrize("part", ["", "transformer.h.0"])
def test_a_model_that_was_compiled_in_place(part):
    tokenizer = tiny_tokenizers.byte_level()
    model = marked(tiny_tokenizers.gpt2(tokenizer))
    model.get_submodule(part).compile(backend="eager")
    message = rf"{part or 'GPT2LMHeadModel'} was compiled by its compile\(\).*_compiled_call_impl = None.*compile=True"
    refused((model, tokenizer), UnsupportedModelError, message, method="lrp")
    model.get_submodule(part)._compiled_call_impl = None
    lrpx.explain(model, tokenizer, TEXT, method="lrp")


def test_a_model_within_torch_compile():
    tokenizer = tiny_tokenizers.byte_level()
    model = torch.compile(marked(tiny_tokenizers.gpt2(tokenizer)), backend="eager")
    with pytest.raises(InputError, match=r"compiled by torch.compile.*model\._orig_mod.*compile=True"):
        lrpx.explain(model, tokenizer, TEXT)


def test_a_part_within_torch_compile():
    tokenizer = tiny_tokenizers.byte_level()
    model = marked(tiny_tokenizers.gpt2(tokenizer))
    model.transformer = torch.compile(model.transformer, backend="eager")
    message = r"transformer was compiled by torch.compile.*model.transformer = model.transformer._orig_mod\."
    refused((model, tokenizer), UnsupportedModelError, message, method="lrp")
    model.transformer = model.transformer._orig_mod
    lrpx.explain(model, tokenizer, TEXT, method="lrp")


@pytest.mark.parametrize("method", METHODS)
def test_a_model_on_flash_attention(method):
    tokenizer = tiny_tokenizers.byte_level()
    model = marked(tiny_tokenizers.gpt2(tokenizer))
    model.config._attn_implementation = "flash_attention_2"  # as if the package were there
    message = r"attn_implementation='flash_attention_2'.*model.set_attn_implementation\(\"sdpa\"\)"
    refused((model, tokenizer), UnsupportedModelError, message, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_nan_weights(method):
    tokenizer = tiny_tokenizers.byte_level()
    model = marked(tiny_tokenizers.gpt2(tokenizer))
    with torch.no_grad():
        model.transformer.h[1].mlp.c_fc.weight[3, 3] = float("nan")
    by_name = METHODS[method].function.startswith(("lrp:", "gradient:"))
    message = r"the first module .* is 'transformer\.h\.1\.mlp\.c_fc'" if by_name else "NaN or infinity"
    refused((model, tokenizer), NonFiniteError, message, method=method)


@pytest.mark.parametrize("method", METHODS)
def test_a_model_that_is_not_explained(method):
    model = tiny.build("masked:bart").model
    before = fingerprint(model)
    with pytest.raises(UnsupportedModelError, match="BartModel is an encoder-decoder model for feature-extraction"):
        lrpx.explain(model, None, [9, 10, 11], position=1, method=method)
    assert fingerprint(model) == before


# Errors of others, in the middle


class Boom(RuntimeError):
    pass


def explode(module, error, *, backward):
    """Let ``module`` raise: when gradient passes its output, or when it has computed it; returns the hook."""

    def hook(_, __, output):
        state = output[0] if isinstance(output, tuple) else output
        if not backward or not state.requires_grad:
            raise error
        state.register_hook(lambda gradient: (_ for _ in ()).throw(error))

    return module.register_forward_hook(hook)


@pytest.mark.parametrize("error", slow_but([Boom, KeyboardInterrupt], Boom))
@pytest.mark.parametrize("backward", [True, False])
@pytest.mark.parametrize("method", METHODS)
def test_an_exception_in_the_middle_leaves_the_model_as_it_was(gpt2, method, backward, error):
    model, tokenizer = gpt2
    untouched, expected = fingerprint(model), lrpx.explain(model, tokenizer, TEXT, method=method)
    assert fingerprint(model) == untouched
    hook = explode(model.transformer.h[0], error, backward=backward)
    before = fingerprint(model)
    with pytest.raises(error):
        lrpx.explain(model, tokenizer, TEXT, method=method)
    assert fingerprint(model) == before
    hook.remove()
    assert fingerprint(model) == untouched
    again = lrpx.explain(model, tokenizer, TEXT, method=method)
    assert (again.relevance == expected.relevance).all()


def test_explaining_in_between_changes_no_gradient(gpt2):
    """Explaining between a user's own forward and backward pass changes neither."""
    model, tokenizer = gpt2
    ids = torch.tensor([tokenizer(TEXT)["input_ids"]])
    weight = model.transformer.h[0].mlp.c_fc.weight
    (expected,) = torch.autograd.grad(model(ids).logits.logsumexp(-1).sum(), weight)
    loss = model(ids).logits.logsumexp(-1).sum()
    lrpx.explain(model, tokenizer, TEXT)
    (gradient,) = torch.autograd.grad(loss, weight)
    assert torch.equal(gradient, expected)


# The command line


@pytest.fixture
def command(gpt2, monkeypatch, capsys):
    """Run ``lrpx`` with the GPT-2 for every model; returns exit status, standard output, standard error."""
    loads = []

    def load(name, **options):
        loads.append(name)
        return type("Loaded", (tuple,), {"model": gpt2[0], "tokenizer": gpt2[1]})(gpt2)

    monkeypatch.setattr("lrpx.models.loading.load", load)

    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["lrpx", *arguments])
        before = fingerprint(gpt2[0])
        with pytest.raises(SystemExit) as end:
            cli.main()
        assert fingerprint(gpt2[0]) == before
        return end.value.code, *capsys.readouterr(), len(loads)

    return run


def test_unwritable_output_is_refused_before_computing(command, tmp_path):
    for output, message in (
        (tmp_path / "none" / "x.html", "the folder .*none does not exist. Make it first: mkdir -p"),
        (tmp_path, "is a folder. Give a file name in it"),
        ("/proc/x.html", "--output /proc/x.html cannot be written"),
    ):
        code, out, err, loads = command("explain", TEXT, "--output", str(output))
        assert (code, out, loads) == (2, "", 0)
        assert re.search(message, err)


def test_an_output_is_not_lost_when_explaining_fails(command, tmp_path):
    output = tmp_path / "x.html"
    output.write_text("what was there")
    code, _, err, loads = command("explain", TEXT, "--target", "", "-o", str(output))
    assert (code, loads) == (2, 1)
    assert "--target '' is no token" in err
    assert output.read_text() == "what was there"
    code, *_ = command("explain", TEXT, "--target", "", "-o", str(tmp_path / "new.html"))
    assert code == 2
    assert not (tmp_path / "new.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "atnlrp"], "lrpx: unknown method 'atnlrp'. Did you mean 'attnlrp'?"),
        (["--format", "htlm"], "lrpx: unknown format 'htlm'. Did you mean 'html'? Known: csv, html, json"),
        (
            ["-o", "x.htlm"],
            "lrpx: --output x.htlm: no format goes with the suffix '.htlm'. Use .json, .jsonl, .csv, .html",
        ),
    ],
)
def test_unknown_names_on_the_command_line_are_refused_before_loading(command, arguments, message):
    code, out, err, loads = command("explain", TEXT, *arguments)
    assert (code, out, loads) == (2, "", 0)
    assert message in err
    assert "Traceback" not in err


# The check itself


CHANGES = {
    "a value": lambda m: m.lm_head.weight.data.add_(1e-12),
    "requires_grad": lambda m: m.lm_head.weight.requires_grad_(False),
    "a gradient": lambda m: setattr(m.lm_head.weight, "grad", torch.zeros_like(m.lm_head.weight)),
    "an attribute of a parameter": lambda m: setattr(m.lm_head.weight, "_mark", True),
    "another parameter": lambda m: setattr(m, "lm_head", nn.Linear(32, 97, bias=False).double()),
    "a buffer": lambda m: m.register_buffer("new", torch.zeros(1)),
    "training mode": lambda m: m.train(),
    "training mode of one module": lambda m: m.transformer.drop.train(),
    "a hook": lambda m: m.transformer.ln_f.register_forward_hook(lambda *_: None),
    "a pre-hook": lambda m: m.transformer.ln_f.register_forward_pre_hook(lambda *_: None),
    "a backward hook": lambda m: m.transformer.ln_f.register_full_backward_hook(lambda *_: None),
    "an attribute": lambda m: setattr(m.transformer.h[0], "seen", 1),
    "forward of one module": lambda m: setattr(m.transformer.h[0], "forward", lambda x: x),
    "the configuration": lambda m: setattr(m.config, "_attn_implementation", "eager"),
    "a list in the configuration": lambda m: setattr(m.config, "architectures", ["Other"]),
    "random numbers": lambda m: torch.rand(1),
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_fingerprint_sees(what):
    model = tiny.build("causal:gpt2")
    with torch.random.fork_rng(devices=[]):
        before = fingerprint(model)
        assert fingerprint(model) == before
        CHANGES[what](model)
        assert fingerprint(model) != before

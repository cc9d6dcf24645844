"""Names of methods and options as a user gave them -> methods, each with all its options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from . import Method, get_method


def methods_with_options(
    methods: str | Sequence[str], options: Mapping[str, object]
) -> list[tuple[Method, dict[str, Any]]]:
    """Each method with its options, defaults filled in. Of several methods, each gets those of the options that it takes.

    Raises:
        InputError: An unknown method, an option that none of the methods takes, or places or rules that are none.
    """
    several = isinstance(methods, list | tuple)
    chosen = [get_method(name) for name in methods] if several else [get_method(methods)]  # type: ignore[arg-type]
    if not chosen:
        raise InputError("method=[]: give the name of a method, or several.")
    given = {name: value for name, value in options.items() if value is not None}
    names = ", ".join(method.name for method in chosen)
    for name in given:
        if not any(name in method.options for method in chosen):
            known = dict.fromkeys(option for method in chosen for option in method.options)
            raise InputError(f"{names} takes no option {name!r}. It takes: {', '.join(known) or 'none'}.")
    at = given.get("at", ())
    if not isinstance(at, str) and not (isinstance(at, list | tuple) and all(isinstance(name, str) for name in at)):
        raise InputError(f'at={at!r}: give "input", "embedding" or a module name, or a list of these.')
    if not isinstance(heads := given.get("heads", False), bool):
        raise InputError(f"heads={heads!r}: give True or False.")
    rules = given.get("rules", "")
    if not isinstance(rules, str | Mapping):
        raise InputError(
            f"rules={rules!r}: give the name of a rule set, or a dictionary from kind of operation to rule."
        )
    if isinstance(rules, Mapping) and (numbers := [name for name in ("gamma", "epsilon") if name in rules]):
        raise InputError(
            f"rules={rules!r}: a rule with a number is text.",
            python=f"Type: rules='{numbers[0]}={rules[numbers[0]]}'.",
        )
    filled = [
        (method, {**method.options, **{k: v for k, v in given.items() if k in method.options}}) for method in chosen
    ]
    if rules and isinstance(rules, str):
        from .rule_names import full_name

        for method, settings in filled:
            if "rules" in method.options:  # a rule for layers with weights joins the method's own rule set
                settings["rules"] = full_name(rules, method.options["rules"])
    return filled

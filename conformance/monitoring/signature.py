"""Writes a method anew around another one, with the same parameters.

A wrapper that takes `*args, **named` packs and unpacks them at every call, which costs more than
the rest of what a monitor does around a scheduler's most frequent call: three times as much. So the
text of the wrapper is completed with the parameters of the method that it wraps, whatever release
that is of, and compiled.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from textwrap import dedent
from typing import Any


def around(inner: Callable[..., Any], text: str, **known: object) -> Callable[..., Any]:
    """Return the function `method` that `text` defines.

    In the text, PARAMETERS stands for what `inner` takes and ARGUMENTS for the same passed on; the
    names in `known`, and `inner`, mean what is given here.
    """
    taken, given, defaults, starred = [], [], {}, False
    for name, parameter in inspect.signature(inner).parameters.items():
        default = ""
        if parameter.default is not parameter.empty:
            default = f"=default_of_{name}"
            defaults[f"default_of_{name}"] = parameter.default
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                taken.append(f"*{name}")
                given.append(f"*{name}")
                starred = True
            case parameter.VAR_KEYWORD:
                taken.append(f"**{name}")
                given.append(f"**{name}")
            case parameter.KEYWORD_ONLY:
                taken += [name + default] if starred else ["*", name + default]
                given.append(f"{name}={name}")
                starred = True
            case _:
                taken.append(name + default)
                given.append(name)
    source = dedent(text).replace("PARAMETERS", ", ".join(taken))
    code = compile(source.replace("ARGUMENTS", ", ".join(given)), "<monitor>", "exec")
    names: dict[str, Any] = {"inner": inner, **defaults, **known}
    exec(code, names)  # noqa: S102  # the caller's own text, with the names of parameters in it
    method: Callable[..., Any] = names["method"]
    return method

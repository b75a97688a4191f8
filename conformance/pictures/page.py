"""Fills the template of a page: one HTML file that fetches nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined


def filled(template: str, **values: Any) -> str:  # noqa: ANN401  # whatever the template shows
    """Return the page of a template of this folder; every value is escaped.

    `{{ data | tojson }}` inside a script element is safe whatever strings the data hold.
    """
    environment = Environment(autoescape=True, undefined=StrictUndefined)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    text = Path(__file__).with_name(template).read_text(encoding="utf-8")
    return environment.from_string(text).render(**values) + "\n"

"""Fields of a manifest's line that a prompt of NeMo requires.

Source: the prompt formatters of NeMo 3.0.0, nemo/collections/common/prompts; other slots have defaults.
"""

from __future__ import annotations

PROMPT_FIELDS: dict[str, tuple[str, ...]] = {
    "canary": ("source_lang", "target_lang", "taskname", "pnc"),
    "canary2": ("source_lang", "target_lang"),
}
ALTERNATIVES = {"taskname": "task"}
"""The newer names of fields."""
LANGUAGE_FIELDS = ("source_lang", "target_lang")


def bare_language(value: str) -> str:
    """Return `en` for `<|en|>`. Both forms stand for the same token."""
    return value.removeprefix("<|").removesuffix("|>")

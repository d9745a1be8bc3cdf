"""Writes the table of flags in `docs/flags.md` from the options: python -m scripts.flags_page"""

from __future__ import annotations

from pathlib import Path

from tfdist.config.flags import JobFlags
from tfdist.config.options import Option
from tfdist.config.strategies import table

PAGE = Path(__file__).parents[1] / "docs" / "flags.md"
_BEGIN, _END = "<!-- table of flags: begin -->\n", "<!-- table of flags: end -->\n"


def flags_table() -> str:
    """The table, in Markdown: the flags of strategies first, in the order of their rows."""
    lines = ["| flag | applies to | meaning |", "| --- | --- | --- |"]
    for by_strategy in table.options_by_flag().values():
        # Strategies that accept other values have a row each.
        by_help: dict[str, list[str]] = {}
        for name, option in by_strategy.items():
            by_help.setdefault(option.full_help, []).append(f"`{name}`")
        first = next(iter(by_strategy.values()))
        lines += [_row(first, ", ".join(names), help) for help, names in by_help.items()]
    lines += [_row(option, "all", option.full_help) for option in JobFlags.defined().values()]
    return "\n".join(lines) + "\n"


def with_table(page: str) -> str:
    """A page with the current table between its two comments."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return before + _BEGIN + flags_table() + _END + after


def _row(option: Option, applies_to: str, help: str) -> str:
    return f"| `--{option.name}` | {applies_to} | {help} |"


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))

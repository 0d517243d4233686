"""Draw the figures of the pages: ``python docs/make_figures.py``.

A page's own examples are run, so that a figure is what the text beside it computes.
Whatever they bind to a name as a matplotlib figure is written to
``figures/PAGE-NAME.png``.
"""

from __future__ import annotations

import doctest
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

HERE = Path(__file__).parent
PAGES = ("saliency", "streaming")
DOTS_PER_INCH = 110


def figures_of(page: str) -> dict[str, Figure]:
    """Run the examples of a page and return the figures that they make, by name."""
    text = (HERE / f"{page}.md").read_text(encoding="utf-8")
    values: dict[str, Any] = {}
    test = doctest.DocTestParser().get_doctest(text, values, page, f"{page}.md", 0)
    options = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    runner = doctest.DocTestRunner(optionflags=options, verbose=False)
    result = runner.run(test, clear_globs=False)
    if result.failed:
        raise SystemExit(f"{page}.md: {result.failed} examples fail")
    return {n: v for n, v in test.globs.items() if isinstance(v, Figure)}


def main() -> int:
    """Write every figure of every page."""
    for page in PAGES:
        for name, figure in figures_of(page).items():
            file = HERE / "figures" / f"{page}-{name}.png"
            file.parent.mkdir(exist_ok=True)
            # Without the program's version, so that a new release changes no file.
            figure.savefig(file, dpi=DOTS_PER_INCH, metadata={"Software": None})
            sys.stdout.write(f"{file.relative_to(HERE.parent)}\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""docs/reproduced.md: every number of the four sources beside ours, from benchmarks/results.

Nothing is trained here: results are put there by `privet reproduce --all --results benchmarks/results`, or one after the other by
`privet reproduce NAME --results benchmarks/results/accuracy.json`. The figure of wang-reversal takes seconds, and is made anew.

    python benchmarks/reproduced.py
"""

from __future__ import annotations

import sys
from pathlib import Path

from privet.reproduction import gather
from privet.reproduction.figure import ERRORS, PICTURE, make_figure
from privet.reproduction.page import markdown

sys.path.insert(0, str(Path(__file__).parent))
from _page import DOCS, put

RESULTS = Path(__file__).parent / "results"


def main() -> None:
    if not (RESULTS / ERRORS).exists():
        make_figure(RESULTS)
        (RESULTS / PICTURE).unlink()  # the page has it in docs/images
    put("reproduced.md", "reproduced", markdown(gather(RESULTS)))
    print(DOCS / "reproduced.md")


if __name__ == "__main__":
    main()

"""Writes the tables of README.md and the documentation between their markers.

    python docs/build_tables.py            writes
    python docs/build_tables.py --check    fails where a table is not what this program writes

Parameter counts come from `lb.summary`, measured figures from the files in results/. A table stands between
`<!-- table: NAME -->` and `<!-- end of table -->`.
"""

import argparse
import functools
import re
import sys
from collections.abc import Callable

from tables_of_methods import ROOT, digits_table, int8_layers_table, int8_table, resnet18_table
from tables_of_results import (
    FACTOR_PRIORS,
    RECORDS,
    RESULTS,
    finetune_table,
    reproduced_text,
    result_table,
    verdicts_table,
)
from tables_of_variance_layers import (
    VARIANCE,
    gaps_table,
    kappa_text,
    mmd_text,
    samples_text,
    transition_text,
    variance_table,
)

from leanbayes.bench.page import bounds_table, speed_page, speed_summary
from leanbayes.bench.programs import digits_page, wide_page
from leanbayes.reproduce.board_page import better_page, networks_page, tables_page
from leanbayes.reproduce.page import results_page

PAGES = (
    "README.md",
    "docs/board.md",
    "docs/factor-priors.md",
    "docs/index.md",
    "docs/k-tied.md",
    "docs/methods.md",
    "docs/patching.md",
    "docs/quantization.md",
    "docs/records.md",
    "docs/results.md",
    "docs/speed.md",
    "docs/variance-layers.md",
)

TABLES: dict[str, Callable[[], str]] = {
    "factor-priors": functools.partial(result_table, "r1-priors", "prior of the factors", FACTOR_PRIORS),
    "records": functools.partial(result_table, "r1-ehr", "method", RECORDS),
    "patching-finetune": finetune_table,
    "tied-results": functools.partial(verdicts_table, "kt"),
    "board-tables": functools.partial(tables_page, RESULTS, "../results/"),
    "board-networks": functools.partial(networks_page, RESULTS, "../results/"),
    "board-better": functools.partial(better_page, RESULTS),
    "int8": int8_table,
    "int8-layers": int8_layers_table,
    "resnet18": resnet18_table,
    "digits": digits_table,
    "results": functools.partial(results_page, RESULTS, "../results/"),
    "speed": functools.partial(speed_summary, RESULTS),
    "speed-bounds": bounds_table,
    "speed-digits": functools.partial(digits_page, RESULTS),
    "speed-wide": functools.partial(wide_page, RESULTS),
    "speed-networks": functools.partial(speed_page, RESULTS, "../results/"),
    "reproduced": reproduced_text,
    "variance-transition": transition_text,
    "variance-mmd": mmd_text,
    "variance-kappa": kappa_text,
    "variance-samples": samples_text,
    "variance-gaps": gaps_table,
} | {name: functools.partial(variance_table, name) for name in VARIANCE}


def fill(text: str, tables: dict[str, str]) -> str:
    """A page with the tables between its markers replaced; an unknown name is an error."""

    def replace(match: re.Match[str]) -> str:
        return f"{match[1]}\n{tables[match[2]]}\n{match[3]}"

    return re.sub(r"(<!-- table: (\S+) -->)\n.*?(<!-- end of table -->)", replace, text, flags=re.DOTALL)


def main() -> int:
    """Write the tables, or say which pages are out of date."""
    parser = argparse.ArgumentParser(description="Write the generated tables of the documentation.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page would change")
    options = parser.parse_args()
    tables = {name: build() for name, build in TABLES.items()}
    stale = []
    for page in PAGES:
        path = ROOT / page
        before = path.read_text()
        after = fill(before, tables)
        if after != before:
            stale.append(page)
            if not options.check:
                path.write_text(after)
    if options.check and stale:
        print(f"out of date: {', '.join(stale)}; run python docs/build_tables.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

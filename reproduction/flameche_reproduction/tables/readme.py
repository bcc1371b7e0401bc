"""README's tables, written between marker comments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from flameche.errors import BadInput
from flameche.report.tables import seed_span
from flameche_reproduction.catalogue import CATALOGUE, find_entry
from flameche_reproduction.image_sets import SETS, SETTINGS
from flameche_reproduction.planned_runs import Selection
from flameche_reproduction.results_index import ResultLine, ResultsIndex
from flameche_reproduction.tables.cells import NOT_RUN, ONE_SEED, Sheet, ari, mean, percent
from flameche_reproduction.tables.comparison import RULE, compare, count_verdicts

SHORT = {"flameche-paper": "FLAMECHE paper", "flameche-robust": "FLAMECHE, former default"}


def methods_block(stored: ResultsIndex) -> str:
    """Return the table of ARI and accuracy by method, a row for each set and setting with any run."""
    sheet = Sheet.of(find_entry("accuracy"), Selection(), stored)
    table = [
        "| | " + " | ".join(SHORT.get(row, sheet.title(row).split(" (")[0]) for row in sheet.rows) + " |",
        "|---" * (len(sheet.rows) + 1) + "|",
    ]
    run = [dataset for dataset in sheet.datasets if sheet.get(dataset)]
    for dataset in run:
        for setting in sheet.settings:
            found = [sheet.get(dataset, row, setting) for row in sheet.rows]
            single = {len(lines) for lines in found if lines} == {1}
            cells, one = [_cell(lines, single) for lines in found], ONE_SEED if single else ""
            table.append(f"| {SETS[dataset].title} {setting}{one} | " + " | ".join(cells) + " |")
    spans: dict[str, list[str]] = {}  # how many seeds, of which sets
    for dataset in run:
        cells_of = [sheet.get(dataset, row, setting) for setting in sheet.settings for row in sheet.rows]
        spans.setdefault(seed_span([len(cell) for cell in cells_of if cell]), []).append(SETS[dataset].title)
    told = ", ".join(f"{span} ({', '.join(names)})" for span, names in spans.items())
    without = [SETS[name].title for name in sheet.datasets if name not in run]
    told = f"Means over {told}." + (f" Not run: {', '.join(without)}." if without else "")
    return "\n".join([*table, "", f"{told} {sheet.provenance()}"])


def agreement_block(stored: ResultsIndex) -> str:
    """Write how many cells of the main tables agree with the paper."""
    sheets = [Sheet.of(CATALOGUE[name], Selection(), stored) for name in SETTINGS]
    cells = [cell for sheet in sheets for cell in compare(sheet, ("ari", "accuracy"))]
    states = count_verdicts(cell.verdict for cell in cells)
    return f"ARI and accuracy under csl, fds and csf, beside the paper: {states}. {RULE}"


def _cell(lines: list[ResultLine], single: bool) -> str:
    """Format ARI and accuracy; single: the row already says that there is one seed."""
    accuracy, score = mean(lines, percent), mean(lines, ari)
    if accuracy is None:
        return NOT_RUN
    one = ONE_SEED if len(lines) == 1 and not single else ""
    return f"{'–' if score is None else f'{round(score, 2) + 0.0:.2f}'} · {accuracy:.1f}{one}"


def fill_blocks(text: str, blocks: Mapping[str, str]) -> str:
    """Put every block between its markers, `<!-- table: NAME -->` and `<!-- end -->`."""
    for name, block in blocks.items():
        found = re.compile(rf"(<!-- table: {re.escape(name)} -->\n)(?:.*?\n)??(<!-- end -->)", re.DOTALL)
        if len(found.findall(text)) != 1:
            raise BadInput(f"expected one <!-- table: {name} --> ... <!-- end --> to put the table into")
        text = found.sub(lambda match, block=block: f"{match[1]}{block}\n{match[2]}", text)  # type: ignore[misc]
    return text


def update_file(file: Path, blocks: Mapping[str, str]) -> bool:
    """Update a file's tables; return whether that changed it."""
    try:
        text = file.read_text()
        new = fill_blocks(text, blocks)
        if new != text:
            file.write_text(new)
    except OSError as problem:
        raise BadInput(f"{file} cannot be read or written: {problem.strerror}") from None
    except BadInput as problem:
        raise BadInput(f"{file}: {problem}") from None
    return new != text

"""The tables that vary a method: extractors, reclustering, M-step, encryption, missing labels, readings."""

from __future__ import annotations

from collections.abc import Sequence

from flameche.report.formats import Table
from flameche_reproduction.image_sets import SETTINGS
from flameche_reproduction.planned_runs import CatalogueEntry, Selection
from flameche_reproduction.results_index import ResultsIndex
from flameche_reproduction.tables.cells import MEASURES, Sheet, long_table, paired_table
from flameche_reproduction.tables.comparison import compare, explain_differences, read_remarks
from flameche_reproduction.tables.document import RenderedTable, sentences

QUALITY = ("ari", "dbi")
OURS = ("readings", "clusters", "recipes", "missing-readings")  # beside cells of the paper's tables
CLUSTERED = "Clustered without training. ARI: of the assignments after the last round"
LEADS = {
    "metadata": "Mean ± sd over three settings and the seeds. Gaussian and uniform: class means of a random "
    "network's features; mean: of images; PCA: each client's own, 50 components; subspaces: of each client's "
    "images.",
    "m-step": "Mean ± sd over three settings and the seeds; the paper's are of one run, of a setting that "
    "it does not name, and have no spread to compare with.",
    "ckks": "Mean ± sd over three settings and the seeds; the leakage guard is off. BFV's sums are exact.",
    "recluster": "Mean ± sd over the seeds.",
    "missing": "Concept shift on features without label skew; every client lacks one label, drawn at random. "
    "FLAMECHE's paper mode imputes, as the paper says; the other modes sum what is there.",
    "missing-readings": "As in `missing`, but all clients of a group lack the same label, and are not tested "
    "on it, unless a row says otherwise; in seed 0, or over five seeds. Rows without pooling: in bfloat16.",
    "readings": "Each method as in the main tables, and below it otherwise: with short batches too; what its "
    "publication leaves open; what brings it nearer to the paper. Most of these are of seed 0.",
    "clusters": "Mean ± sd over the seeds; PACFL in seed 0.",
    "recipes": "What the paper leaves open of training itself: the other ways, in seed 0, below those taken; "
    "accuracies are of the last round. With nothing held out all but Oracle and FedAvg were trained in "
    "bfloat16, and so were all rows without pooling or with the first member's statistics, StoCFL whose "
    "absent members stay, and IFCA with own statistics.",
}


def draw_over_settings(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Draw one table for each measure, pooled over the settings."""
    sheet = Sheet.of(entry, choice, stored)
    tables = [(MEASURES[key][0], paired_table(sheet, entry.name, (key,), first="")) for key in QUALITY]
    found = [] if entry.name == "m-step" else compare(sheet, QUALITY, pooled=True)
    full = long_table(sheet, entry.name, QUALITY, pooled=True)
    return _drawn(entry, sheet, tables, full, explain_differences(found, read_remarks(stored)))


def draw_by_setting(entry: CatalogueEntry, choice: Selection, stored: ResultsIndex) -> RenderedTable:
    """Draw one table for each setting."""
    sheet, measures = Sheet.of(entry, choice, stored), _measures(entry)
    ours = entry.name in OURS
    tables = [
        (
            SETTINGS[setting] if len(sheet.settings) > 1 else "",
            paired_table(sheet, _printed(entry, setting), measures, setting),
        )
        for setting in sheet.settings
    ]
    remarks = [] if ours else explain_differences(compare(sheet, measures), read_remarks(stored))
    full = long_table(sheet, "" if ours else entry.name, measures)
    return _drawn(entry, sheet, tables, full, remarks)


def _printed(entry: CatalogueEntry, setting: str) -> str:
    """Return the name of the paper's table to compare with."""
    return entry.beside or (setting if entry.name in OURS else entry.name)


def _measures(entry: CatalogueEntry) -> Sequence[str]:
    return {"recluster": QUALITY, "clusters": ("ari",)}.get(entry.name, ("ari", "accuracy"))


def _drawn(
    entry: CatalogueEntry, sheet: Sheet, tables: list[tuple[str, Table]], full: Table, remarks: list[str]
) -> RenderedTable:
    alone = all(not run.training for run in sheet.planned)
    about = CLUSTERED + ("." if entry.name == "clusters" else "; DBI: lower is better.") if alone else ""
    mode = "Paper mode." if alone and entry.name != "clusters" else ""
    pooled = full.rows[0][1].text == "all" if full.rows else False
    lead = sentences(
        [
            sheet.scale(),
            mode,
            about,
            LEADS[entry.name],
            sheet.sizes(pooled),
            sheet.provenance(),
            *sheet.notes(),
        ]
    )
    return RenderedTable(entry.name, entry.title, lead, tables, full, remarks=remarks, runs=sheet.counted)

"""Results as CSV, LaTeX and pandas: rows of plain values; and a card in the fields of the OpenDP registry of deployments.

A column whose name begins with ``internal`` was computed from private records without noise. Only its owner can read a file
with such a column.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privet.errors import InputError
from privet.io import from_json, read_text, write_whole
from privet.io.names import CARD_JSON
from privet.report.words import times

if TYPE_CHECKING:
    from privet.report.record import RunRecord

INTERNAL = "internal"
SUFFIXES = (".csv", ".tex")
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{mark: f"\\{mark}" for mark in "&%$#_{}"},
}


def check_suffix(path: Path) -> None:
    """Raise for an unknown file format, before anything runs."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"--export writes {' and '.join(SUFFIXES)} files, and {path} is neither.")
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file with --export.")


def export(rows: Sequence[Mapping[str, Any]], path: Path, caption: str = "") -> Path:
    """Write rows of results as a CSV file or a LaTeX table, by the ending of the name; nested values become columns."""
    check_suffix(path)
    flat = [flattened(row) for row in rows]
    columns = list(dict.fromkeys(name for row in flat for name in row))
    text = _csv(flat, columns) if path.suffix == ".csv" else _latex(flat, columns, caption)
    is_internal = any(name.startswith(INTERNAL) for name in columns)
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text.encode(), mode=0o600 if is_internal else 0o644)


def flattened(row: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested mappings as columns with joined names; lists of plain values as text; other lists are left out."""
    found: dict[str, Any] = {}
    for name, value in row.items():
        name = f"{before}_{name}" if before else str(name)
        if isinstance(value, Mapping):
            found |= flattened(value, name)
        elif isinstance(value, list | tuple):
            if value and all(isinstance(item, str | int | float) for item in value):
                found[name] = "; ".join(map(str, value))
        else:
            found[name] = value
    return found


def to_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """The rows as a frame of pandas."""
    try:
        pandas = import_module("pandas")
    except ImportError:
        raise InputError("A frame needs pandas: install it with 'pip install privet[pandas]'.") from None
    return pandas.DataFrame([flattened(row) for row in rows])


def run_facts(record: RunRecord, folder: Path | None = None) -> dict[str, Any]:
    """A run as one row; with its folder, also the statement of the ledger."""
    spent = record.spent(record.open_ledger(folder)).to_dict() if folder is not None else {}
    inside: dict[str, Any] = {
        "test_accuracy": record.test_accuracy,
        "training_accuracy": record.training_accuracy,
        "attacks": {one.key: {"auc": one.auc, "low": one.low, "high": one.high} for one in record.attacks},
        "figures": record.internal,
    }
    utility, error = record.released_utility, record.released_error
    return {
        "title": record.title,
        "method": record.how.key or record.method,
        "created": record.created,
        "data": record.data.name,
        "training_records": record.data.training_records,
        "unit": record.data.unit,
        "delta": record.delta,
        **spent,
        "seeded": record.seeded,
        "seconds": record.seconds,
        "accuracy": utility.accuracy if utility else None,
        "accuracy_low": utility.low if utility else None,
        "accuracy_high": utility.high if utility else None,
        "error": error.error if error else None,
        "error_low": error.low if error else None,
        "error_high": error.high if error else None,
        "error_of_constant": error.constant if error else None,
        **(inside if record.data.public else {INTERNAL: inside}),
    }


def _csv(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_cell(row.get(name)) for name in columns] for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Quote a text that a spreadsheet would read as a formula; it may come from somebody else's record."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _latex(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], caption: str) -> str:
    """A table for the package booktabs; columns without any value are left out."""
    used = [name for name in columns if any(row.get(name) not in (None, "") for row in rows)]
    lines = [
        "% Needs \\usepackage{booktabs}.",
        "\\begin{table}",
        *([f"\\caption{{{_escaped(caption)}}}"] if caption else []),
        f"\\begin{{tabular}}{{{'l' * len(used)}}}",
        "\\toprule",
        f"{' & '.join(_escaped(name.replace('_', ' ')) for name in used)} \\\\",
        "\\midrule",
        *(f"{' & '.join(_shown(row.get(name)) for name in used)} \\\\" for row in rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _shown(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else f"${'-' if value < 0 else ''}\\infty$"
    return _escaped(str(value))


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^&%$#_{}]", lambda found: _SPECIAL[found[0]], " ".join(text.split()))


# --- the registry of deployments --------------------------------------------------------------------------------------

TIERS: dict[str, tuple[str, ...]] = {
    "required": (
        "basic.name",
        "basic.data_curators",
        "basic.description",
        "basic.intended_use",
        "basic.data_product_type",
        "basic.data_product_region",
        "basic.publication_date",
        "administrative.registry_authors",
    ),
    "tier 2": (
        "dp_variant.variant_name",
        "privacy_loss.privacy_unit",
        "privacy_loss.privacy_parameters",
        "deployment_model.model_name",
        "deployment_model.release_type",
        "deployment_model.data_source_type",
        "deployment_model.access_type",
    ),
    "tier 3": (
        "dp_variant.data_domain",
        "dp_variant.unprotected_quantities",
        "privacy_loss.privacy_unit_details",
        "privacy_loss.privacy_parameters_details",
        "deployment_model.actors",
        "accounting.post_processing",
        "accounting.composition",
        "implementation.preprocessing_and_hyperparameter_tuning",
        "implementation.mechanisms",
        "implementation.justification",
    ),
}
"""The fields of an entry by tier, as the registry's schema of 2026-07-15 has them (docs/registry.md)."""


def write_registry_entry(folder: Path, path: Path) -> Path:
    """Write the card of a run in the fields of the registry, as YAML."""
    import yaml  # type: ignore[import-untyped]

    entry = registry_entry(from_json(read_text(folder / CARD_JSON)))
    text: str = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=100)
    return write_whole(path, text.encode(), mode=0o644)


def registry_entry(card: Mapping[str, Any]) -> dict[str, Any]:
    """A card in the fields of the registry, as a draft. Nothing is invented: optional fields without an answer are left out.

    Raises `InputError` with all answers that the registry requires and nobody gave.
    """
    about, privacy = card["about"], card["privacy"]
    needed = {
        "curator": "data_curators",
        "description": "description",
        "intended_use": "intended_use",
        "region": "data_product_region",
        "publication_date": "publication_date",
        "registry_authors": "registry_authors",
    }
    if missing := [name for name in needed if not about[name]]:
        raise InputError(
            f"The registry needs answers that no run can know: {', '.join(missing)}. Give them with privet report --about."
        )
    entry = {
        "basic": {
            "name": card["title"],
            "data_curators": [about["curator"]],
            "intended_use": about["intended_use"],
            "data_product_type": "Synthetic data" if card["synthetic"] else "Machine learning model",
            "data_product_region": about["region"],
            "description": about["description"],
            "publication_date": about["publication_date"],
            "data_product_sector": about["sector"],
        },
        "dp_variant": {
            "variant_name": "Approximate DP",
            "data_domain": f"Data sets of any number of {card['data']['unit']}s. One {card['data']['unit']} is "
            f"{card['data']['record']}.",
            "unprotected_quantities": " ".join(card["first"]["What is not protected"]),
        },
        "privacy_loss": {
            "privacy_unit": privacy["unit"],
            "privacy_unit_details": f"{privacy['neighbours']}. One {card['data']['unit']} is {card['data']['record']}.",
            "privacy_parameters": {"epsilon": privacy["epsilon"], "delta": privacy["delta"]},
            "privacy_parameters_details": f"{privacy['standing']}. {privacy['opening']} {privacy['statement']}. "
            f"{privacy['meaning']}",
        },
        "deployment_model": {
            "model_name": "Central",
            "model_name_details": about["trust_model"],
            "actors": " ".join(filter(None, (about["threat_model"], about["trust_model"]))),
            "release_type": "One release",
            "release_type_details": " ".join(
                filter(None, (about["later_releases"], *card["first"]["Spent on these data so far"]))
            ),
            "data_source_type": about["data_source"],
            "access_type": "Non-interactive",
        },
        "accounting": {
            "post_processing": "Whatever is computed from the noisy values alone, which costs nothing.",
            "composition": f"All uses of the data in the ledger, composed by {privacy['accountant']}.",
        },
        "implementation": {
            "preprocessing_and_hyperparameter_tuning": " ".join(
                filter(None, (about["preprocessing"], *((card["tuning"] or {}).get("said", ()))))
            ),
            "mechanisms": f"{card['made_by']}. "
            + " ".join(f"{times(one['count']).capitalize()}: {one['what']}." for one in card["accesses"])
            + f" Assumptions: {'; '.join(card['assumptions'])}.",
            "justification": " ".join(filter(None, (about["why_epsilon"], about["why_delta"]))),
        },
        "administrative": {
            "sources": about["sources"],
            "notes": f"Ledger {card['ledger']['head']}. "
            + " ".join(f"{name}: SHA-256 {sha}." for name, sha in card["files"].items()),
            "registry_authors": [name.strip() for name in about["registry_authors"].split(",") if name.strip()],
        },
    }
    if privacy["epsilon"] is None:  # infinite: there is no parameter to register
        del entry["privacy_loss"]["privacy_parameters"]
    filled = {part: {name: value for name, value in held.items() if value} for part, held in entry.items()}
    slug = re.sub(r"[^a-z0-9]+", "_", card["title"].lower()).strip("_")
    return {"url_slug": slug, "status": "Draft", "tier": _tier(filled), "deployment": filled}


def _tier(entry: Mapping[str, Mapping[str, Any]]) -> int:
    """The highest tier whose fields all have an answer."""

    def has(tier: str) -> bool:
        return all(field in entry[part] for part, _, field in (name.partition(".") for name in TIERS[tier]))

    return 1 + (has("tier 2") + (has("tier 2") and has("tier 3")))

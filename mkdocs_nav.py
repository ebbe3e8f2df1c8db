"""What mkdocs is told beyond mkdocs.yml: the navigation, with every decision and guide, and the tables of methods."""

from pathlib import Path
from typing import Any

PAGES = {
    "Home": "index.md",
    "Data": "data.md",
    "Who is protected": "protection.md",
    "Training": "training.md",
    "Frames and loaders": "frames.md",
    "scikit-learn and regression": "scikit-learn.md",
    "Trackers": "trackers.md",
    "Your own loop": "own-loop.md",
    "From Opacus": "from-opacus.md",
    "Hugging Face Trainer": "transformers.md",
    "Lightning": "lightning.md",
    "accelerate": "accelerate.md",
    "Past one machine": "past-one-machine.md",
    "What is checked": "what-is-checked.md",
    "Which models run": "architectures.md",
    "Users": "users.md",
    "Accounting": "accounting.md",
    "The account of a data set": "accounts.md",
    "What epsilon means": "what-epsilon-means.md",
    "Methods": "methods.md",
    "Recipes": "recipes.md",
    "Tuning": "tuning.md",
    "Stopping, resuming and dry runs": "stopping.md",
    "Results": "results.md",
    "The sources' numbers": "reproduced.md",
    "Synthetic data": "synthesis.md",
    "Attacks": "attacks.md",
    "Audits": "audit.md",
    "Reports": "report.md",
    "The card in the fields of others": "registry.md",
    "Optimized noise": "optimised-noise.md",
    "Private GANs": "private-gans.md",
    "Residual perturbation": "residual-perturbation.md",
    "PATE": "pate.md",
    "Performance": "performance.md",
    "Farms of runs": "farms.md",
    "Data larger than memory": "large-data.md",
    "Dependencies": "dependencies.md",
    "The books, before and now": "books-before-and-now.md",
}

METHODS, SETTINGS = "<!-- the table of methods -->", "<!-- the settings of all methods -->"
"""Where a page gets the tables."""


def on_config(config: Any) -> Any:
    """Called by mkdocs before it looks for pages."""
    docs = Path(config["docs_dir"])
    navigation: list[dict[str, Any]] = [{title: page} for title, page in PAGES.items() if (docs / page).exists()]
    listed = set(PAGES.values())
    if more := sorted(page.name for page in docs.glob("*.md") if page.name not in listed):
        navigation.append({"More": more})
    for title, folder in (("Plug-ins", "plugins"), ("Decisions", "decisions")):
        if pages := sorted(docs.glob(f"{folder}/*.md")):
            navigation.append({title: [str(page.relative_to(docs)) for page in pages]})
    config["nav"] = navigation
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs for each page: put in the tables that the registry of methods knows."""
    if METHODS in markdown:
        from privet.cli.listed import table_of_methods

        markdown = markdown.replace(METHODS, table_of_methods())
    if SETTINGS in markdown:
        markdown = markdown.replace(SETTINGS, settings())
    return markdown


def settings() -> str:
    """A section for each class of methods; variants differ in the values of their settings."""
    from privet.cli.listed import table_of_settings
    from privet.methods import METHODS as TABLE

    shown: dict[type, list[str]] = {}
    for key, method in TABLE.items():
        shown.setdefault(type(method), []).append(key)
    return "\n\n".join(
        f"### {', '.join(f'`{key}`' for key in keys)}\n\n{TABLE[keys[0]].title}.\n\n{table_of_settings(keys[0])}"
        for keys in shown.values()
    )

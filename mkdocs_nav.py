"""The navigation of the site: the pages that exist, and every decision without naming each one in mkdocs.yml."""

from pathlib import Path
from typing import Any

PAGES = {
    "Home": "index.md",
    "Data": "data.md",
    "Who is protected": "protection.md",
    "Training": "training.md",
    "What is checked": "what-is-checked.md",
    "Users": "users.md",
    "Accounting": "accounting.md",
    "What epsilon means": "what-epsilon-means.md",
    "Recipes": "recipes.md",
    "Results": "results.md",
    "The sources' numbers": "reproduced.md",
    "Artificial data": "synthesis.md",
    "Attacks": "attacks.md",
    "Audits": "audit.md",
    "Reports": "report.md",
    "Optimised noise": "optimised-noise.md",
    "Private GANs": "private-gans.md",
    "Residual perturbation": "residual-perturbation.md",
    "PATE": "pate.md",
    "Performance": "performance.md",
    "Dependencies": "dependencies.md",
    "The books, before and now": "books-before-and-now.md",
}


def on_config(config: Any) -> Any:
    """Called by mkdocs before it looks for pages."""
    docs = Path(config["docs_dir"])
    navigation: list[dict[str, Any]] = [{title: page} for title, page in PAGES.items() if (docs / page).exists()]
    decisions = sorted(docs.glob("decisions/*.md"))
    if decisions:
        navigation.append({"Decisions": [str(page.relative_to(docs)) for page in decisions]})
    config["nav"] = navigation
    return config

"""Recipes: settings that work, where each came from, and the code that trains by them."""

from privet.recipes.fit import Fitted, fit
from privet.recipes.pate import Public, fit_pate, run_pate
from privet.recipes.prepare import outputs
from privet.recipes.recipe import Recipe, Settings, load, names, pick
from privet.recipes.run import run, staged

__all__ = [
    "Fitted",
    "Public",
    "Recipe",
    "Settings",
    "fit",
    "fit_pate",
    "load",
    "names",
    "outputs",
    "pick",
    "run",
    "run_pate",
    "staged",
]

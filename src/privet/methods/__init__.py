"""Every method of the library: one file each, one table."""

from importlib import import_module

from privet.methods.method import (
    METHODS,
    Context,
    DataSpec,
    Method,
    Outcome,
    Power,
    Public,
    Ran,
    Setting,
    Task,
    TrainedModel,
    method_for,
    method_named,
    methods_that_make,
    option,
    plain_settings,
    register,
    settings_of,
    with_settings,
)

__all__ = [
    "METHODS",
    "Context",
    "DataSpec",
    "Method",
    "Outcome",
    "Power",
    "Public",
    "Ran",
    "Setting",
    "Task",
    "TrainedModel",
    "method_for",
    "method_named",
    "methods_that_make",
    "option",
    "plain_settings",
    "register",
    "settings_of",
    "with_settings",
]

# Importing a file registers its methods. This is the order of every table.
for _file in (
    "dpsgd",
    "optimized_noise",
    "class_moments",
    "pate",
    "dpgan",
    "frozen_noise_layer_gan",
    "noise_layer_gan",
    "residual_perturbation",
    "svrg",
):
    import_module(f"privet.methods.{_file}")

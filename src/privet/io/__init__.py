"""Files and plug-ins: atomic writes, locks, dataclasses as JSON, names of the files of a run, registries."""

from privet.io.plain import MisfitError, build, to_plain
from privet.io.registry import Registry, load_plugin, object_at
from privet.io.system import Busy, Lock, keep_freed_memory, sync_folder, write_whole

__all__ = [
    "Busy",
    "Lock",
    "MisfitError",
    "Registry",
    "build",
    "keep_freed_memory",
    "load_plugin",
    "object_at",
    "sync_folder",
    "to_plain",
    "write_whole",
]

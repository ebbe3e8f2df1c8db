"""Files and plug-ins: atomic writes, locks, foreign files, dataclasses as JSON, names of the files of a run, registries."""

from privet.io.given import (
    check_inside,
    check_unicode,
    from_json,
    from_yaml,
    in_bytes,
    kind_of,
    list_folder,
    open_file,
    printable,
    read_text,
    unreadable,
    user_path,
)
from privet.io.plain import MisfitError, build, to_plain
from privet.io.registry import Registry, load_plugin, object_at
from privet.io.system import (
    Busy,
    Lock,
    keep_freed_memory,
    memory_here,
    of_the_path,
    remove_torn,
    sync_folder,
    why_refused,
    write_whole,
)

__all__ = [
    "Busy",
    "Lock",
    "MisfitError",
    "Registry",
    "build",
    "check_inside",
    "check_unicode",
    "from_json",
    "from_yaml",
    "in_bytes",
    "keep_freed_memory",
    "kind_of",
    "list_folder",
    "load_plugin",
    "memory_here",
    "object_at",
    "of_the_path",
    "open_file",
    "printable",
    "read_text",
    "remove_torn",
    "sync_folder",
    "to_plain",
    "unreadable",
    "user_path",
    "why_refused",
    "write_whole",
]

"""Every table and figure of the sources that can be run here: the source's number beside ours, and why they differ."""

from privet.reproduction.chapters import gather
from privet.reproduction.entry import Chapter, Entry, Section
from privet.reproduction.source import Part, Source, sources

__all__ = ["Chapter", "Entry", "Part", "Section", "Source", "gather", "sources"]

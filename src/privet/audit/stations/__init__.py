"""The stations of the laboratory: small settings of the library's real path, each built so that a class of bugs shows.

The library's own stations are in this package. Methods add theirs with `add_stations`, as `privet.methods.voting` does.
"""

from privet.audit.laboratory import Station
from privet.audit.stations.path import own_stations
from privet.audit.stations.training import COUNTED_DELTA, DELTA, PUBLIC_SIZE, Training
from privet.audit.stations.users import model_stations

__all__ = [
    "COUNTED_DELTA",
    "DELTA",
    "PUBLIC_SIZE",
    "Training",
    "add_stations",
    "model_stations",
    "path_stations",
    "stations",
]

_added: dict[str, Station] = {}


def add_stations(*stations: Station) -> None:
    """Let the laboratory visit these stations, too; one with the name of an added station replaces it."""
    _added.update({station.name: station for station in stations})


def stations() -> tuple[Station, ...]:
    """Every station: the library's own path and the added ones first, then models, losses and loops of users."""
    return (*path_stations(), *model_stations())


def path_stations() -> tuple[Station, ...]:
    """The stations where a sound library releases something and is not refuted."""
    return (*own_stations(), *_added.values())

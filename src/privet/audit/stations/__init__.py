"""The stations of the laboratory: small settings of the library's real path, each built so that a class of bugs shows."""

from privet.audit.laboratory import Station
from privet.audit.stations.path import path_stations
from privet.audit.stations.training import PUBLIC_SIZE, Training
from privet.audit.stations.users import model_stations

__all__ = ["PUBLIC_SIZE", "Training", "model_stations", "path_stations", "stations"]


def stations() -> tuple[Station, ...]:
    """Every station: the parts of the real path first, then what a user's model, loss and loop may do to it."""
    return (*path_stations(), *model_stations())

"""Real data for the tests that read it: the folder that DPSWEEP_DATA names, or a skip with the reason."""

import os
from pathlib import Path

import pytest

from dpsweep.datasets.base import MissingData


def folder_of(reader):
    """The folder with a reader's files; skips the test where there is none."""
    if "DPSWEEP_DATA" not in os.environ:
        pytest.skip("DPSWEEP_DATA names no folder")
    folder = Path(os.environ["DPSWEEP_DATA"])
    try:
        reader.check(folder)
    except MissingData:
        pytest.skip(f"{reader.name} is not in the folder that DPSWEEP_DATA names")
    return folder

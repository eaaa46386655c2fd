"""Accounting, calibration, sampling and noise: on numpy and scipy alone, so that planning never loads torch."""

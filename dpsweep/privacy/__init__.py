"""Accounting, calibration, sampling and noise: numpy and scipy only, so that planning and reporting never load torch."""

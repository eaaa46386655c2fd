"""Readers of the datasets: files in, split and encoded NumPy arrays out. Nothing here imports torch."""

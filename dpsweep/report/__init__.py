"""Reports from records: tables, figures, exact tests and intervals, and what was proved and released.

Reads records alone and imports neither torch nor opacus, so that a report takes seconds on any machine.
"""

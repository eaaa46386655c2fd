"""One file a paper: what its tables and figures show, and how its records are told apart."""

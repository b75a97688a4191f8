"""One file for each block manager that is held against the specification."""

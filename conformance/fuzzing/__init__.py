"""Long random runs: jobs, processes, failures that are kept."""

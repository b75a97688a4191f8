"""Records results, and writes the documents that are generated."""

"""What the user calls: one file a command, each a thin skin over the module that does the work."""

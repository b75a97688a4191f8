"""From a model and a memory to blocks: what the command `plan` shows."""

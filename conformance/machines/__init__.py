"""The stateful machines of Hypothesis."""

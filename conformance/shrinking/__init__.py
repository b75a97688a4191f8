"""Makes a failing program small, and prints it as a test."""

"""Drives a manager: one request after the other, many at once, at random."""

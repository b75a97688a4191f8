"""Streams of requests: traces, and a seeded generator."""

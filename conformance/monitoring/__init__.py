"""Watches a live pool; ends a test of somebody else's."""

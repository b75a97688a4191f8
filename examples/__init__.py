"""A toy block manager, its adapter, and faults planted in it; docs/adapters.md walks through them.

Import order: toy_manager, toy, toy_faults.
"""

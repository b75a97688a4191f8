"""The catalogue of seeded faults, and who kills them."""

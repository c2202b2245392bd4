"""Every model type that transformers registers, tiny: configurations, inputs, and the table. Used by `sweep_families.py`."""

"""The parts of the conversion from StableHLO, as JAX lowers it, to Fuseline's program format."""

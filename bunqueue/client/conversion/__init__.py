"""Values as MessagePack and back: which types jobs can carry, how they are encoded, how they are checked.

All job data and results pass through this package, wherever their type was declared. Pydantic is imported
only when one of its types is used.
"""

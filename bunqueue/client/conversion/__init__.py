"""Values as MessagePack and back: which types jobs can carry, how they are encoded, how they are checked.

Everything that a job takes or gives goes through this room, whoever declared its type. Pydantic is imported
only when one of its types is met.
"""

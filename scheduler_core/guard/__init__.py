"""The placement guard: what it answers when Longhorn places a replica.

placement_guard   the disk that a replica goes to: as Longhorn wants it, or another one where every promise holds; whether
                  Longhorn asks about every placement
replica_steering  moves replicas that no pod needs on their node away from space that was promised to pods
"""

"""Space that volumes will take and that no Longhorn object shows yet.

derive    the demand of one volume or claim, derived from the cluster
index     all demand of a view, by volume and by node
unplaced  volumes that may go to any node
"""

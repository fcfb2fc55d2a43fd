"""Space that volumes will take and that no Longhorn object shows yet.

derive  the demand of one volume or claim, derived from the cluster; volumes that may go to any node
index   all demand of a view, by volume and by node
"""

"""The status page: a read-only view of the cluster for people, rendered here and refreshed by a small script.

views       GET /, /pods, /nodes/..., /decision-log and the assets: which rows are asked for, and what each page shows
rendering   templates, escaping, the tiles of the first page, what bars, nodes and drains say

Templates and assets are files of this package. No page names another server, and none has inline styles or scripts.
"""

"""The status page: a read-only view of the cluster for people, rendered here and refreshed by a small script.

routes      GET /, /pods, /nodes/..., /decision-log and the assets, and what each page shows, as plain values
rendering   which rows are asked for; templates, escaping, the tiles of the first page

Templates and assets are files of this package. No page names another server, and none has inline styles or scripts.
"""

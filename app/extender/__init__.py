"""What the routes and commands share: the owner of the view, and the answers as plain data."""

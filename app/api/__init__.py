"""HTTP: thin routes that decode, call one service, and encode."""

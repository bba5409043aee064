"""One file per command; every file here adds its command to the application."""

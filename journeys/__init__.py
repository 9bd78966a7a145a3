"""Every documented command, run as a user types it, on small data and on whatever this machine has."""

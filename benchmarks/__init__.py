"""What gradkit costs, measured beside its bound and its peers in one process."""

"""Methods x models x benchmark -> records."""

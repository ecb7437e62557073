"""Measures this queue beside its peers and PostgreSQL's own floor, on this machine, in interleaved rounds."""

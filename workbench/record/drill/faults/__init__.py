"""The faults, one a file; each module has one ``fault``."""

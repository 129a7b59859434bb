"""The command line: thin commands, one file each in ``workbench/cli/commands``."""

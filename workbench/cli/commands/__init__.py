"""One file for each command; its name is the command's name and ``command`` its click command."""

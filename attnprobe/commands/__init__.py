"""The commands of the command line, by what they do; `cli` puts them together."""

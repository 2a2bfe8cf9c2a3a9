"""What every room may import: arguments, files, tables, random numbers, printing, plugins."""

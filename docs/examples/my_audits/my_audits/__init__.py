"""The examples of docs/adding.md."""

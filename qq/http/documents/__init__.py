"""JSON documents and lists: how requests are read, and how answers are written."""

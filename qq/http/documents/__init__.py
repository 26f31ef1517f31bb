"""JSON documents and lists: parsing of requests, and rendering of answers."""

"""One module per page: from a view to lines of text, for any width and height."""

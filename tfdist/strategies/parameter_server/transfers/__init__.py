"""What a step sends between workers and parameter servers, in few messages."""

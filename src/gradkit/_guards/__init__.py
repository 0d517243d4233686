"""What makes a call safe: no trace left, one forward, samples proved independent."""

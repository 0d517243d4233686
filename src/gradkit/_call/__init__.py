"""One call of a public function, from its arguments to flat rows."""

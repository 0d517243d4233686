"""A whole data set's rows: streamed into a store, or folded into one value."""

"""The user's shapes and names <-> flat rows; nothing else knows both."""

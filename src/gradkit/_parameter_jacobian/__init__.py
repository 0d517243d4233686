"""Derivatives with respect to parameters: rows behind one interface.

``_mapping`` is what people hold; ``_quantities`` what they ask of it; ``_entries``
what answers, held or (``_replay``) computed again; ``_collect`` makes it from a call.
"""

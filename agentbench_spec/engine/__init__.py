"""Decodes one text with any drafter. Read in this order: loop, session, target, cache, attention, verify."""

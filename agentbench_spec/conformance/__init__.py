"""Is this drafter what its interface says, or does it only look weak?"""

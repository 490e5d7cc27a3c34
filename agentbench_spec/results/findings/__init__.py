"""What the rows of a run say, one sentence a finding, each with its interval or with why there is none."""

"""The tables and figures of the DLite paper, its values beside ours."""

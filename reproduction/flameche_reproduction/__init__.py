"""The paper's tables and figures: which runs they need, those runs, and the results beside the paper's."""

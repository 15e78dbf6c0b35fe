"""The report: one page of HTML that says how a run went, from its log alone."""

"""Printed tables of papers, our numbers beside them, verdicts and claims."""

"""Candidates: files written beside, fsynced and renamed; the database decides which one is the result."""

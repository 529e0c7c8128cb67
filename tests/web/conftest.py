"""What tests of pages share."""

from chromium import browser  # noqa: F401

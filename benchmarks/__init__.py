"""Programs that measure how long dpcanary takes, compared with other ways to do the same work."""

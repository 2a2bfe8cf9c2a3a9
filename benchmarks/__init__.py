"""Programs that measure how long dpcanary takes, beside what else does the same work."""

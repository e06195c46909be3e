"""The topics of an app: created and checked, the versions and hand-overs that they record."""

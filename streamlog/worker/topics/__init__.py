"""The topics of an app: their creation and checks, and the versions and hand-overs in them."""

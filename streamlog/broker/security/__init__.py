"""Who somebody is and what they may do: authentication, credentials, ACLs.

Decisions only: nothing here reads a socket, a file or a clock. The `gate` of a connection asks
`authentication` about it.
"""

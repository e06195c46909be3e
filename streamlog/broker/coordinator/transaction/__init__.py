"""The transaction coordinator: transactional ids and markers, in `__transaction_state` (KIP-98)."""

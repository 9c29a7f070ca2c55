"""The worker: claims runs, drives them, keeps their leases alive."""

"""Who is in the cluster: leases, names, views, keys and barriers, kept by one coordinator."""

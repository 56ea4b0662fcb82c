"""`psf demo`: shards and trainers as real processes train a convolutional network on the digits data."""

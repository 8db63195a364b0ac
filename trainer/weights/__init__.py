"""Weights on their way to whatever generates: `buckets.Packer` cuts them, `loading.Loading` takes them over."""

"""CuKe: the paper's supervised data (section 3), curated from measured samples by rules that are each one function."""

//! Order: sort, topk, and where the largest is.

//! The CUDA caching allocator as a model: requests in, segments, blocks and addresses out.

#![forbid(unsafe_code)]

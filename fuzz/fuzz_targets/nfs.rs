//! See `feed::nfs`.
#![no_main]

#[path = "../feed.rs"]
mod feed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| feed::nfs(data));

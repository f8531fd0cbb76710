//! See `feed::kv_log`.
#![no_main]

#[path = "../feed.rs"]
mod feed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| feed::kv_log(data));

//! See `feed::target_log`.
#![no_main]

#[path = "../feed.rs"]
mod feed;

libfuzzer_sys::fuzz_target!(|data: &[u8]| feed::target_log(data));

//! How fast parity is made and undone on one processor: GB/s of data encoded, changed or
//! given back, median of rounds.
//!
//! `cargo run --release -p nuri-stripe --example code_bench`

use std::time::Instant;

use nuri_stripe::code::Code;

const FRAME: usize = 1 << 20;
const ROUNDS: usize = 41;

fn main() {
    println!("{:>6} {:>10} {:>12} {:>12}", "code", "encode", "change 1", "rebuild 1");
    for (k, m) in [(3, 1), (4, 2), (8, 2), (8, 3), (10, 4)] {
        let code = Code::new(k, m).expect("a shape that is allowed");
        let encode = median(|| encode(code, k, m));
        let change = median(|| change(code, m));
        let rebuild = median(|| rebuild(code, k, m));
        println!("{k:>3}+{m:<2} {encode:>10.1} {change:>12.1} {rebuild:>12.1}");
    }
}

fn median(mut once: impl FnMut() -> f64) -> f64 {
    let mut all: Vec<f64> = (0..ROUNDS).map(|_| once()).collect();
    all.sort_by(f64::total_cmp);
    all[ROUNDS / 2]
}

fn gb_per_second(bytes: usize, start: Instant) -> f64 {
    bytes as f64 / 1e9 / start.elapsed().as_secs_f64()
}

fn stripe(k: usize) -> Vec<Vec<u8>> {
    (0..k).map(|i| (0..FRAME).map(|b| (b * 7 + i) as u8).collect()).collect()
}

fn parity_of(code: Code, data: &[Vec<u8>], m: usize) -> Vec<Vec<u8>> {
    let mut parity = vec![vec![1; FRAME]; m];
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&data, &mut out).expect("blocks fit");
    parity
}

fn encode(code: Code, k: usize, m: usize) -> f64 {
    let data = stripe(k);
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![1; FRAME]; m];
    let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    let start = Instant::now();
    code.encode(&data, &mut out).expect("blocks fit");
    gb_per_second(k * FRAME, start)
}

/// All parity blocks brought up to date with a change of one data block.
fn change(code: Code, m: usize) -> f64 {
    let (change, mut parity) = (vec![3u8; FRAME], vec![vec![1; FRAME]; m]);
    let start = Instant::now();
    for (j, parity) in parity.iter_mut().enumerate() {
        code.update(j, 0, &change, parity).expect("blocks fit");
    }
    gb_per_second(FRAME, start)
}

/// The first data block from the others and parity.
fn rebuild(code: Code, k: usize, m: usize) -> f64 {
    let data = stripe(k);
    let parity = parity_of(code, &data, m);
    let mut left: Vec<(usize, &[u8])> =
        data.iter().map(Vec::as_slice).enumerate().skip(1).collect();
    left.push((k, &parity[0]));
    let mut out = vec![1; FRAME];
    let start = Instant::now();
    code.rebuild(&left, 0, &mut out).expect("enough is left");
    assert_eq!(out, data[0]);
    gb_per_second(FRAME, start)
}

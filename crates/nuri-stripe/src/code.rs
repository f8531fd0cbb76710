//! Parity: k data blocks, m parity blocks, any k of them give all back.
//!
//! Over GF(2^8) with x^8 + x^4 + x^3 + x^2 + 1. Parity j of the data d_0 .. d_(k-1) is the sum of
//! (2^j)^i * d_i: plain XOR for j = 0, RAID-6's Q for j = 1. For k up to 16 and m up to 4 every
//! choice of k blocks is invertible (a test tries all of them). This is on-disk format.

use nuri_proto::limit::{MAX_DATA, MAX_PARITY};

/// The low byte of the field's polynomial.
const POLYNOMIAL: u8 = 0x1d;

/// A k + m code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Code {
    data: usize,
    parity: usize,
}

/// Why blocks cannot be computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CodeError {
    #[error("a stripe has 1 to {MAX_DATA} data and 1 to {MAX_PARITY} parity blocks")]
    Shape,
    #[error("fewer blocks than a stripe's data are left")]
    TooFew,
    #[error("blocks of a stripe differ in number or length from what was asked")]
    Blocks,
}

impl Code {
    /// # Errors
    /// [`CodeError::Shape`].
    pub fn new(data: usize, parity: usize) -> Result<Code, CodeError> {
        let fits = (1..=MAX_DATA).contains(&data) && (1..=MAX_PARITY).contains(&parity);
        if fits { Ok(Code { data, parity }) } else { Err(CodeError::Shape) }
    }

    /// What data block `i` is multiplied with in parity block `j`.
    fn coefficient(self, j: usize, i: usize) -> u8 {
        (0..j * i).fold(1, |c, _| times2(c))
    }

    /// Computes all parity blocks of a full stripe.
    ///
    /// # Errors
    /// [`CodeError::Blocks`].
    pub fn encode(self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), CodeError> {
        let len = data.first().map_or(0, |block| block.len());
        let fits = data.len() == self.data
            && parity.len() == self.parity
            && data.iter().all(|block| block.len() == len)
            && parity.iter().all(|block| block.len() == len);
        if !fits {
            return Err(CodeError::Blocks);
        }
        for (j, out) in parity.iter_mut().enumerate() {
            // Horner: ((d_(k-1) * g + d_(k-2)) * g + ...) + d_0 with g = 2^j.
            out.copy_from_slice(data[self.data - 1]);
            for block in data[..self.data - 1].iter().rev() {
                (0..j).for_each(|_| double(out));
                add(out, block);
            }
        }
        Ok(())
    }

    /// Brings parity block `j` up to date with a change of data block `i`: `change` is old XOR new.
    ///
    /// # Errors
    /// [`CodeError::Blocks`].
    pub fn update(
        self,
        j: usize,
        i: usize,
        change: &[u8],
        parity: &mut [u8],
    ) -> Result<(), CodeError> {
        if j >= self.parity || i >= self.data || change.len() != parity.len() {
            return Err(CodeError::Blocks);
        }
        add_multiple(parity, change, self.coefficient(j, i));
        Ok(())
    }

    /// Computes block `wanted` (data first, then parity) from blocks that are left.
    ///
    /// # Errors
    /// [`CodeError::TooFew`] with fewer than k, [`CodeError::Blocks`] where they do not fit.
    pub fn rebuild(
        self,
        left: &[(usize, &[u8])],
        wanted: usize,
        out: &mut [u8],
    ) -> Result<(), CodeError> {
        let used = left.get(..self.data).ok_or(CodeError::TooFew)?;
        let all = self.data + self.parity;
        let fits = |(i, block): &(usize, &[u8])| *i < all && block.len() == out.len();
        if wanted >= all || !used.iter().all(fits) {
            return Err(CodeError::Blocks);
        }
        let rows: Vec<Vec<u8>> = used.iter().map(|(i, _)| self.row(*i)).collect();
        // wanted = row * data and used = rows * data, so the weights solve weights * rows = row.
        let weights = solve(rows, self.row(wanted)).ok_or(CodeError::Blocks)?;
        out.fill(0);
        for ((_, block), weight) in used.iter().zip(weights) {
            add_multiple(out, block, weight);
        }
        Ok(())
    }

    /// What the data blocks are multiplied with in block `i`.
    fn row(self, i: usize) -> Vec<u8> {
        match i.checked_sub(self.data) {
            None => (0..self.data).map(|d| u8::from(d == i)).collect(),
            Some(j) => (0..self.data).map(|d| self.coefficient(j, d)).collect(),
        }
    }
}

fn times2(a: u8) -> u8 {
    // Branch-free, so that loops over it become vector instructions.
    (a << 1) ^ (POLYNOMIAL & (a >> 7).wrapping_neg())
}

fn times(a: u8, b: u8) -> u8 {
    let mut a = a;
    let mut out = 0;
    for bit in 0..8 {
        out ^= a & (b >> bit & 1).wrapping_neg();
        a = times2(a);
    }
    out
}

/// Every element but 0 is its own inverse to the power 254.
fn inverse(a: u8) -> u8 {
    (0..253).fold(a, |power, _| times(power, a))
}

fn double(block: &mut [u8]) {
    block.iter_mut().for_each(|byte| *byte = times2(*byte));
}

fn add(out: &mut [u8], block: &[u8]) {
    out.iter_mut().zip(block).for_each(|(o, b)| *o ^= b);
}

/// out += block * factor
fn add_multiple(out: &mut [u8], block: &[u8], factor: u8) {
    match factor {
        0 => {}
        1 => add(out, block),
        _ => out.iter_mut().zip(block).for_each(|(o, b)| *o ^= times(*b, factor)),
    }
}

/// Solves x * rows = target by elimination; `None` where the rows depend on each other.
fn solve(rows: Vec<Vec<u8>>, target: Vec<u8>) -> Option<Vec<u8>> {
    let n = rows.len();
    // Columns become equations: for each c, the sum of x_r * rows[r][c] is target[c].
    let mut equations: Vec<Vec<u8>> =
        (0..n).map(|c| rows.iter().map(|row| row[c]).chain([target[c]]).collect()).collect();
    for i in 0..n {
        let pivot = (i..n).find(|r| equations[*r][i] != 0)?;
        equations.swap(i, pivot);
        let scale = inverse(equations[i][i]);
        equations[i].iter_mut().for_each(|c| *c = times(*c, scale));
        let pivot = equations[i].clone();
        for (r, equation) in equations.iter_mut().enumerate() {
            let factor = equation[i];
            if r != i && factor != 0 {
                equation.iter_mut().zip(&pivot).for_each(|(c, p)| *c ^= times(*p, factor));
            }
        }
    }
    Some(equations.into_iter().map(|equation| equation[n]).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The field by its definition: polynomials multiplied and reduced.
    fn times_by_definition(a: u8, b: u8) -> u8 {
        let mut product: u16 = 0;
        for bit in 0..8 {
            if b >> bit & 1 == 1 {
                product ^= u16::from(a) << bit;
            }
        }
        for bit in (8..15).rev() {
            if product >> bit & 1 == 1 {
                product ^= 0x11d << (bit - 8);
            }
        }
        product as u8
    }

    #[test]
    fn the_field_is_as_defined() {
        for a in 0..=255 {
            for b in 0..=255 {
                assert_eq!(times(a, b), times_by_definition(a, b));
            }
            assert!(a == 0 || times(a, inverse(a)) == 1);
        }
    }

    /// Every choice of m lost blocks, for every shape.
    #[test]
    fn any_k_blocks_give_back_all() {
        for (k, m) in (1..=MAX_DATA).flat_map(|k| (1..=MAX_PARITY).map(move |m| (k, m))) {
            let code = Code::new(k, m).unwrap();
            let rows: Vec<Vec<u8>> = (0..k + m).map(|i| code.row(i)).collect();
            for lost in 0u32..1 << (k + m) {
                if lost.count_ones() as usize != m {
                    continue;
                }
                let left: Vec<_> =
                    (0..k + m).filter(|i| lost >> i & 1 == 0).map(|i| rows[i].clone()).collect();
                let unit = rows[0].clone();
                assert!(solve(left, unit).is_some(), "{k}+{m} without {lost:b}");
            }
        }
    }

    fn stripe() -> impl Strategy<Value = (Code, Vec<Vec<u8>>)> {
        (1..=MAX_DATA, 1..=MAX_PARITY, 1usize..200).prop_flat_map(|(k, m, len)| {
            let block = proptest::collection::vec(any::<u8>(), len);
            let code = Just(Code::new(k, m).unwrap());
            (code, proptest::collection::vec(block, k))
        })
    }

    fn encoded(code: Code, data: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let mut parity = vec![vec![0; data[0].len()]; code.parity];
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&data, &mut out).unwrap();
        parity
    }

    proptest! {
        #[test]
        fn what_was_lost_is_rebuilt((code, data) in stripe(), seed in any::<u64>()) {
            let parity = encoded(code, &data);
            let all: Vec<&Vec<u8>> = data.iter().chain(&parity).collect();
            let mut order: Vec<usize> = (0..all.len()).collect();
            order.sort_by_key(|i| (*i as u64 + 1).wrapping_mul(seed | 1) >> 7);
            let (lost, kept) = order.split_at(code.parity);
            let left: Vec<(usize, &[u8])> = kept.iter().map(|i| (*i, all[*i].as_slice())).collect();
            let mut out = vec![0; data[0].len()];
            for wanted in lost {
                code.rebuild(&left, *wanted, &mut out).unwrap();
                prop_assert_eq!(&out, all[*wanted]);
            }
            prop_assert_eq!(code.rebuild(&left[1..], lost[0], &mut out), Err(CodeError::TooFew));
        }

        #[test]
        fn a_change_of_data_is_a_change_of_parity(
            (code, data) in stripe(),
            which in any::<prop::sample::Index>(),
            byte in 1u8..,
        ) {
            let i = which.index(data.len());
            let mut parity = encoded(code, &data);
            let mut after = data.clone();
            after[i].iter_mut().for_each(|b| *b ^= byte);
            let change = vec![byte; data[0].len()];
            for (j, block) in parity.iter_mut().enumerate() {
                code.update(j, i, &change, block).unwrap();
            }
            prop_assert_eq!(parity, encoded(code, &after));
        }
    }

    #[test]
    fn shapes_and_lengths_are_checked() {
        assert_eq!(Code::new(17, 1), Err(CodeError::Shape));
        assert_eq!(Code::new(0, 1), Err(CodeError::Shape));
        assert_eq!(Code::new(3, 0), Err(CodeError::Shape));
        let code = Code::new(2, 1).unwrap();
        let mut short = [0; 3];
        let outcome = code.encode(&[&[1, 2], &[3, 4]], &mut [&mut short]);
        assert_eq!(outcome, Err(CodeError::Blocks));
        assert_eq!(code.update(1, 0, &[1], &mut [1]), Err(CodeError::Blocks));
    }
}

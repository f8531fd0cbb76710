//! The rows of the table. Every column follows from the seed, the row's number, and how often the
//! row was updated. So each row that is read can be checked.

use nuri_io::rng::Rng;

use super::engine::{Outcome, Row, Value};

/// The columns of the study: about 1 KB a row.
pub(super) const TABLE: &str = "
    CREATE TABLE entries (
        id INTEGER PRIMARY KEY,
        code CHAR(8),
        name VARCHAR(8),
        kind CHAR(1),
        state CHAR(1),
        number CHAR(14),
        place VARCHAR(22),
        title VARCHAR(162) NOT NULL,
        note VARCHAR(22),
        body VARCHAR(4000)
    );
    CREATE INDEX by_code ON entries (code);
    CREATE INDEX by_number ON entries (number);";

/// Widths of the columns that are any text, in order; those that an update changes are two.
const WIDTHS: [usize; 7] = [8, 1, 1, 22, 162, 22, 750];
const UPDATED: [usize; 2] = [4, 5];
/// Where the indexed columns stand among all.
const CODE: usize = 1;
const NUMBER: usize = 5;
const COLUMNS: usize = 10;
const LETTERS: &[u8; 64] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .";
/// Texts are pieces of one of this length: making each anew would measure the processor.
const TEXT: usize = 1 << 16;

/// The contents of a table.
pub(super) struct Contents {
    key: u64,
    text: String,
}

/// How often a row was updated.
pub(super) type Generation = u8;

impl Contents {
    pub(super) fn new(seed: u64) -> Contents {
        let key = Rng::new(seed).next();
        let mut random = Rng::new(!key);
        let letter = |_| char::from(LETTERS[random.below(LETTERS.len() as u64) as usize]);
        Contents { key, text: (0..TEXT).map(letter).collect() }
    }

    /// Different for each row: a permutation of numbers below 2^32.
    pub(super) fn code(&self, id: u64) -> String {
        format!("{:08x}", (id as u32).wrapping_mul(0x9e37_79b1) ^ self.key as u32)
    }

    fn number(&self, id: u64) -> String {
        format!("{:014x}", Rng::new(self.key ^ id).next() >> 8)
    }

    /// The text of one of the columns of any text.
    fn piece(&self, id: u64, column: usize, generation: Generation) -> &str {
        let generation = if UPDATED.contains(&column) { generation } else { 0 };
        let of = (id << 16) ^ ((column as u64) << 8) ^ u64::from(generation);
        let width = WIDTHS[column];
        let start = Rng::new(self.key ^ of).below((TEXT - width) as u64) as usize;
        &self.text[start..start + width]
    }

    /// What an update writes.
    pub(super) fn updated(&self, id: u64, generation: Generation) -> [&str; 2] {
        UPDATED.map(|column| self.piece(id, column, generation))
    }

    /// A new row, by columns.
    pub(super) fn values(&self, id: u64) -> Vec<Value<'_>> {
        let mut values = vec![Value::id(id)];
        let mut pieces = 0..WIDTHS.len();
        for column in 1..COLUMNS {
            match column {
                CODE => values.push(self.code(id).into()),
                NUMBER => values.push(self.number(id).into()),
                _ => values.extend(pieces.next().map(|i| Value::from(self.piece(id, i, 0)))),
            }
        }
        values
    }

    /// Whether a row of all columns is what it must be.
    pub(super) fn is_right(&self, row: &dyn Row, id: u64, generation: Generation) -> Outcome<bool> {
        let mut right = row.id()? == id;
        let mut pieces = 0;
        for column in 1..COLUMNS {
            let found = row.text(column)?;
            right &= match column {
                CODE => found == self.code(id),
                NUMBER => found == self.number(id),
                _ => {
                    pieces += 1;
                    found == self.piece(id, pieces - 1, generation)
                }
            };
        }
        Ok(right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_differ_by_seed_number_and_generation() {
        let contents = Contents::new(1);
        let codes: std::collections::BTreeSet<_> = (0..5000).map(|id| contents.code(id)).collect();
        assert_eq!(codes.len(), 5000);
        assert_ne!(contents.code(7), Contents::new(2).code(7));
        assert_ne!(contents.updated(7, 1), contents.updated(7, 2));
        assert_ne!(contents.piece(7, 6, 0), contents.piece(8, 6, 0));
        assert_eq!(contents.piece(7, 6, 0), contents.piece(7, 6, 1), "never updated");
        let bytes: usize = WIDTHS.iter().sum::<usize>() + 8 + 14;
        assert!((950..1050).contains(&bytes), "{bytes}");
    }
}

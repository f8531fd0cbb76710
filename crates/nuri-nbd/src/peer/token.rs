//! The secret that opens a door, and the name of an export of a door.

use std::fmt;
use std::io;
use std::str::FromStr;

/// Opens one device at one server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Token(u128);

impl Token {
    /// As it was told by who admits.
    pub fn of(bits: u128) -> Token {
        Token(bits)
    }

    pub fn bits(self) -> u128 {
        self.0
    }

    /// # Errors
    /// Where the system gives no random bytes.
    pub fn random() -> io::Result<Token> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        Ok(Token(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:032x}", self.0)
    }
}

impl FromStr for Token {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Token, Self::Err> {
        u128::from_str_radix(text, 16).map(Token)
    }
}

/// A connection of one who forwards: an export of a door is named so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub token: Token,
    /// The number of who forwards.
    pub forwarder: u64,
    /// How often it connected.
    pub attempt: u64,
}

impl fmt::Display for Entry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}.{:x}.{}", self.token, self.forwarder, self.attempt)
    }
}

impl Entry {
    pub(super) fn parse(name: &str) -> Option<Entry> {
        let mut words = name.split('.');
        let token = words.next()?.parse().ok()?;
        let forwarder = u64::from_str_radix(words.next()?, 16).ok()?;
        Some(Entry { token, forwarder, attempt: words.next()?.parse().ok()? })
    }
}

//! The space's secret: 32 random bytes in a file that only its owner may read.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, Mac};
use sha2::Sha256;

/// What every connection proves to know. Never printed.
#[derive(Clone)]
pub struct Secret([u8; 32]);

/// Why a token file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error("cannot read the token file {0}: {1}; copy the file `token` of the space there")]
    Read(String, std::io::Error),
    #[error("cannot write the token file {0}: {1}")]
    Write(String, std::io::Error),
    #[error("the token file {0} is readable by others; run: chmod 600 {0}")]
    Mode(String),
    #[error("the token file {0} does not hold 64 hexadecimal digits; copy it again from the space")]
    Content(String),
    #[error("the system gave no random bytes")]
    Random,
}

impl Secret {
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret(bytes)
    }

    /// Makes a new secret and writes it to `path` (mode 0600), which must not exist.
    ///
    /// # Errors
    /// Where the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Secret, SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|_| SecretError::Random)?;
        let text: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
        let write = || {
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            writeln!(file, "{text}")?;
            file.sync_all()
        };
        write().map_err(|e| SecretError::Write(path.display().to_string(), e))?;
        Ok(Secret(bytes))
    }

    /// Reads a token file.
    ///
    /// # Errors
    /// Names the file and what to do.
    pub fn load(path: &Path) -> Result<Secret, SecretError> {
        let name = || path.display().to_string();
        let meta = fs::metadata(path).map_err(|e| SecretError::Read(name(), e))?;
        if meta.permissions().mode() & 0o077 != 0 {
            return Err(SecretError::Mode(name()));
        }
        let text = fs::read_to_string(path).map_err(|e| SecretError::Read(name(), e))?;
        parse_hex(text.trim()).map(Secret).ok_or_else(|| SecretError::Content(name()))
    }

    /// HMAC-SHA256 over the parts.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.0)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(out)
}

//! The space's secret: 32 random bytes in a file, the token, that only its owner may read.
//!
//! A second secret for mounts is computed from the first one. A process that has only the second
//! one cannot make the calls of nodes.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use hmac::{Hmac, Mac};
use nuri_proto::op::Role;
use sha2::Sha256;

/// What stands before the digits in a token file for mounts.
const FOR_MOUNTS: &str = "mount:";

/// What every connection proves to know. Never printed.
#[derive(Clone)]
pub struct Secret {
    bytes: [u8; 32],
    role: Role,
}

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
    #[error("the token file {0} is for mounts only; copy the file `token` of the space there")]
    ForMounts(String),
    #[error("the system gave no random bytes")]
    Random,
}

impl Secret {
    /// The space's own.
    pub fn from_bytes(bytes: [u8; 32]) -> Secret {
        Secret { bytes, role: Role::Node }
    }

    /// What who knows it may be.
    pub fn role(&self) -> Role {
        self.role
    }

    /// The secret for mounts; the space's own cannot be computed from it.
    #[must_use]
    pub fn for_mounts(&self) -> Secret {
        match self.role {
            Role::Mount => self.clone(),
            Role::Node => {
                let bytes = self.mac(&[b"nuri mounts"]).finalize().into_bytes().into();
                Secret { bytes, role: Role::Mount }
            }
        }
    }

    /// The secret that this role proves, where it is known here.
    pub(crate) fn of(&self, role: Role) -> Option<Secret> {
        match role {
            Role::Mount => Some(self.for_mounts()),
            Role::Node => (self.role == Role::Node).then(|| self.clone()),
        }
    }

    /// Makes a new secret and writes it to `path` (mode 0600), which must not exist.
    ///
    /// # Errors
    /// Where the file exists or cannot be written.
    pub fn create(path: &Path) -> Result<Secret, SecretError> {
        let mut bytes = [0; 32];
        getrandom::fill(&mut bytes).map_err(|_| SecretError::Random)?;
        let secret = Secret::from_bytes(bytes);
        secret.write(path)?;
        Ok(secret)
    }

    /// Writes it to `path` (mode 0600), which must not exist.
    ///
    /// # Errors
    /// Where the file exists or cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), SecretError> {
        let digits = hex::encode(self.bytes);
        let before = if self.role == Role::Mount { FOR_MOUNTS } else { "" };
        let write = || {
            let mut file =
                fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
            writeln!(file, "{before}{digits}")?;
            file.sync_all()
        };
        write().map_err(|e| SecretError::Write(path.display().to_string(), e))
    }

    /// Reads the space's own token file.
    ///
    /// # Errors
    /// As [`Secret::load`]; where it is one for mounts.
    pub fn load_own(path: &Path) -> Result<Secret, SecretError> {
        let secret = Secret::load(path)?;
        let wrong = || SecretError::ForMounts(path.display().to_string());
        Some(secret).filter(|secret| secret.role == Role::Node).ok_or_else(wrong)
    }

    /// Reads a token file, the space's own or one for mounts.
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
        let text = text.trim();
        let (digits, role) = match text.strip_prefix(FOR_MOUNTS) {
            Some(digits) => (digits, Role::Mount),
            None => (text, Role::Node),
        };
        let bytes = parse_hex(digits).ok_or_else(|| SecretError::Content(name()))?;
        Ok(Secret { bytes, role })
    }

    /// HMAC-SHA256 over the parts.
    pub(crate) fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(&self.bytes)
            .unwrap_or_else(|_| unreachable!("HMAC takes keys of any length"));
        parts.iter().for_each(|part| mac.update(part));
        mac
    }
}

fn parse_hex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    hex::decode_to_slice(text, &mut out).ok()?;
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_file_says_what_it_is_for() {
        let dir = tempfile::tempdir().unwrap();
        let [own, mounts] = ["token", "mount.token"].map(|name| dir.path().join(name));
        let secret = Secret::create(&own).unwrap();
        secret.for_mounts().write(&mounts).unwrap();
        let loaded = Secret::load(&mounts).unwrap();
        assert_eq!((loaded.role(), loaded.bytes), (Role::Mount, secret.for_mounts().bytes));
        assert_ne!(loaded.bytes, secret.bytes);
        assert_eq!(Secret::load_own(&own).unwrap().bytes, secret.bytes);
        assert!(matches!(Secret::load_own(&mounts), Err(SecretError::ForMounts(_))));
        assert!(loaded.of(Role::Node).is_none(), "it does not lead back");
    }
}

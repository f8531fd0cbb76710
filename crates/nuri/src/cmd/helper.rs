//! `mount.fuse.nuri`: what mount(8) and `/etc/fstab` run for `-t fuse.nuri`. The same program under
//! another name.
//!
//! ```text
//! mount -t fuse.nuri -o token=/etc/nuri/token 10.0.0.1:7300 /mnt
//! ```
//!
//! The source may end with `#NAME`: mounts of one space that programs tell apart by their source.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::{Failure, logs};

const NAME: &str = "mount.fuse.nuri";
/// What mount(8) takes for "the mount failed", and for "called wrongly".
const FAILED: u8 = 32;
const WRONG: u8 = 1;
const USAGE: &str = "use: mount.fuse.nuri SOURCE DIR [-sfnv] [-o OPTION,...]; SOURCE is a space's \
                     directory or HOST:PORT, with #NAME behind it where wanted";

/// Options that say nothing about this mount: for mount(8), systemd and others who read fstab.
const OTHERS: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "rw",
    "relatime",
    "async",
    "nosuid",
    "nodev",
    "exec",
    "allow_other",
    "default_permissions",
    "nodiratime",
    "mand",
    "nomand",
    "silent",
    "loud",
];

/// Whether the program was called under this name.
pub(crate) fn is_called() -> bool {
    let name = std::env::args_os().next().map(PathBuf::from);
    name.and_then(|path| path.file_name().map(|name| name == NAME)).unwrap_or(false)
}

/// What the arguments ask for.
#[derive(PartialEq, Eq, Debug, Default)]
struct Asked {
    /// Words for `nuri fs mount`.
    words: Vec<OsString>,
    /// Nothing is to be done.
    is_fake: bool,
}

/// Mounts as mount(8) asks for it.
pub(crate) fn run() -> ExitCode {
    let asked = match parse(std::env::args_os().skip(1)) {
        Ok(asked) => asked,
        Err(Failure(text)) => {
            eprintln!("{NAME}: {}", logs::plain(&text));
            return ExitCode::from(WRONG);
        }
    };
    if asked.is_fake {
        return ExitCode::SUCCESS;
    }
    let words = ["nuri", "fs", "mount"].map(OsString::from);
    let cli = match Cli::try_parse_from(words.into_iter().chain(asked.words)) {
        Ok(cli) => cli,
        Err(error) => {
            eprintln!("{NAME}: {error}");
            return ExitCode::from(WRONG);
        }
    };
    match super::run(cli) {
        Ok(code) => code,
        Err(Failure(text)) => {
            eprintln!("{NAME}: {}", logs::plain(&text));
            ExitCode::from(FAILED)
        }
    }
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Asked, Failure> {
    let (mut places, mut options) = (Vec::new(), Vec::new());
    let (mut asked, mut is_sloppy) = (Asked::default(), false);
    let mut args = args;
    while let Some(arg) = args.next() {
        let text = arg.to_string_lossy();
        match text.as_ref() {
            "-o" => {
                let list = args.next().ok_or(Failure(USAGE.into()))?;
                options.extend(list.to_string_lossy().split(',').map(str::to_owned));
            }
            "-t" | "-N" => drop(args.next()),
            flags if flags.starts_with('-') && flags.len() > 1 => {
                if flags.chars().skip(1).any(|c| !"sfnv".contains(c)) {
                    return Err(Failure(format!("{flags} is not known; {USAGE}")));
                }
                asked.is_fake |= flags.contains('f');
                is_sloppy |= flags.contains('s');
            }
            _ => places.push(arg),
        }
    }
    let [source, point] = <[OsString; 2]>::try_from(places).map_err(|_| Failure(USAGE.into()))?;
    for option in options.iter().filter(|option| !option.is_empty()) {
        match words_of(option)? {
            Some(words) => asked.words.extend(words.into_iter().map(OsString::from)),
            None if is_sloppy => {}
            None => return Err(Failure(format!("the option {option} is not known here"))),
        }
    }
    let text = source.to_string_lossy().into_owned();
    let space = text.rsplit_once('#').map_or(text.as_str(), |(space, _)| space).to_owned();
    asked.words.extend(["--source".into(), source, space.into(), point]);
    Ok(asked)
}

/// What `nuri fs mount` calls the option; none where it is not known.
fn words_of(option: &str) -> Result<Option<Vec<String>>, Failure> {
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    let with_value = |flag: &str| match value {
        "" => Err(Failure(format!("{name} needs a value: {name}=..."))),
        value => Ok(Some(vec![flag.to_owned(), value.to_owned()])),
    };
    let flag = |flag: &str| Ok(Some(vec![flag.to_owned()]));
    match name {
        "ro" => flag("--ro"),
        "suid" => flag("--suid"),
        "dev" => flag("--dev"),
        "noexec" => flag("--noexec"),
        "noatime" => flag("--noatime"),
        "token" => with_value("--token-file"),
        "transport" => with_value("--transport"),
        "inodes" => with_value("--inodes"),
        "wait" => with_value("--wait"),
        "remount" => Err(Failure("a mount cannot be changed: unmount it and mount it anew".into())),
        _ if OTHERS.contains(&name) || name.starts_with("x-") || name == "comment" => {
            Ok(Some(Vec::new()))
        }
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &[&str]) -> Result<String, String> {
        let asked = parse(words.iter().map(OsString::from)).map_err(|Failure(text)| text)?;
        let words: Vec<_> = asked.words.iter().map(|w| w.to_string_lossy()).collect();
        Ok(words.join(" "))
    }

    #[test]
    fn what_mount_asks_for() {
        assert_eq!(asked(&["/s#a", "/m"]).unwrap(), "--source /s#a /s /m");
        let fstab =
            ["h:1", "/m", "-s", "-v", "-o", "rw,noatime,_netdev,x-systemd.automount,token=/t"];
        assert_eq!(asked(&fstab).unwrap(), "--noatime --token-file /t --source h:1 h:1 /m");
        let typed = ["/s", "/m", "-t", "fuse.nuri", "-o", "ro,suid,dev,noexec,inodes=900"];
        let words = "--ro --suid --dev --noexec --inodes 900 --source /s /s /m";
        assert_eq!(asked(&typed).unwrap(), words);
        assert!(parse(["/s", "/m", "-f"].iter().map(OsString::from)).unwrap().is_fake);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (words, part) in [
            (&["/s"][..], "use:"),
            (&["/s", "/m", "/n"], "use:"),
            (&["/s", "/m", "-x"], "-x is not known"),
            (&["/s", "/m", "-o"], "use:"),
            (&["/s", "/m", "-o", "fast"], "fast is not known"),
            (&["/s", "/m", "-o", "token"], "needs a value"),
            (&["/s", "/m", "-o", "remount,ro"], "mount it anew"),
        ] {
            assert!(asked(words).unwrap_err().contains(part), "{words:?}");
        }
        assert!(asked(&["/s", "/m", "-s", "-o", "fast"]).is_ok());
    }
}
